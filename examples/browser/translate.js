// Translate lines of standard input, each as one sentence: node translate.js [--batch=8] FOLDER < FILE

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { parseArgs } from "node:util";

async function main() {
  const { loadTranslator } = await import("./translator.js"); // an error without `npm install`
  const { values, positionals } = parseArgs({ options: { batch: { type: "string", default: "1" } }, allowPositionals: true });
  const [folder] = positionals;
  if (!folder) throw Error("name the folder of a model");
  const read = async (name) => new Uint8Array(await readFile(join(folder, name)));
  const { translate, stop } = loadTranslator(read, { "ssplit-mode": "sentence" }, Number(values.batch));
  const lines = (await text(process.stdin)).replace(/\n$/, "").split("\n");
  await translate("1"); // loads the model
  const begin = performance.now();
  const translations = await Promise.all(lines.map(translate));
  console.error(`${lines.length} lines in ${((performance.now() - begin) / 1000).toFixed(2)} s`);
  process.stdout.write(translations.map((line) => `${line}\n`).join(""));
  stop();
}

main().catch((error) => {
  console.error(`Error: ${error.message}`);
  process.exit(1);
});

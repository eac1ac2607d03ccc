// Translate lines of standard input: node translate.js FOLDER < FILE

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { text } from "node:stream/consumers";

import { loadTranslator } from "./translator.js";

const folder = process.argv[2];
const read = async (name) => new Uint8Array(await readFile(join(folder, name)));
const { translate, stop } = loadTranslator(read, { "ssplit-mode": "sentence" }); // a line is one
const lines = (await text(process.stdin)).split("\n").slice(0, -1);
const translations = await Promise.all(lines.map((line) => translate(line)));
process.stdout.write(translations.map((line) => `${line}\n`).join(""));
stop();

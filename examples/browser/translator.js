// The engine of Bergamot with one folder that `mt export --to bergamot` wrote.

import {
  BatchTranslator,
  TranslatorBacking,
} from "./node_modules/@browsermt/bergamot-translator/translator.js";

const PAIR = { from: "source", to: "target" };

class FolderBacking extends TranslatorBacking {
  // `read` returns the bytes of a file by name; `options` replace those of the folder.
  constructor(read, options) {
    super({ pivotLanguage: null });
    Object.assign(this, { read, options });
  }

  async loadModelRegistery() {
    return [PAIR];
  }

  async loadTranslationModel() {
    const config = parseOptions(new TextDecoder().decode(await this.read("config.intgemm8bitalpha.yml")));
    const { models, vocabs } = config;
    const readBuffer = async (name) => (await this.read(name)).buffer;
    return {
      model: await readBuffer(models[0]),
      shortlist: new ArrayBuffer(0), // none
      vocabs: await Promise.all([...new Set(vocabs)].map(readBuffer)),
      config: Object.fromEntries(
        Object.entries({ ...config, ...this.options }).filter(([, value]) => !Array.isArray(value)),
      ),
    };
  }
}

// Return a function that translates a text, and one that ends the engine.
// `batchSize` texts are translated together: faster, but the rounding of each depends on the others.
export function loadTranslator(read, options = {}, batchSize = 1) {
  const engine = new BatchTranslator({ batchSize }, new FolderBacking(read, options));
  const translate = async (text) => (await engine.translate({ ...PAIR, text })).target.text;
  return { translate, stop: () => engine.delete() };
}

// Read YAML of one level, as `mt export` writes it: numbers, words and lists of words.
function parseOptions(text) {
  const options = {};
  let name;
  for (const line of text.split("\n").filter(Boolean)) {
    const item = line.match(/^\s*- (.*)$/);
    if (item) options[name] = [...(options[name] || []), item[1]];
    else [, name, options[name]] = line.match(/^([\w-]+):\s*(.*)$/);
  }
  return options;
}

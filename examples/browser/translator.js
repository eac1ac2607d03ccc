// Greedy search with the encoder and the cached decoder step of `mt export --to onnx`.

import { Vocabulary } from "./vocabulary.js";

export class Translator {
  // Load an export from the folder `url`; `ort` is the module onnxruntime-web.
  static async load(ort, url) {
    const read = async (name) => {
      const response = await fetch(new URL(name, url));
      if (!response.ok) throw Error(`${name}: ${response.status} ${response.statusText}`);
      return new Uint8Array(await response.arrayBuffer());
    };
    const readJson = async (name) => JSON.parse(new TextDecoder().decode(await read(name)));
    const metadata = await readJson("metadata.json");
    const models = Object.keys((await readJson("tokenizer/tokenizer.json")).sha256);
    const vocabularies = [];
    for (const name of models) vocabularies.push(new Vocabulary(await read(`tokenizer/${name}`)));
    const sessions = [];
    for (const name of ["encoder.onnx", "decoder.onnx"])
      sessions.push(await ort.InferenceSession.create(await read(name)));
    return new Translator(ort, metadata, vocabularies, sessions);
  }

  constructor(ort, metadata, vocabularies, [encoder, decoder]) {
    const tags = Object.keys({ ...metadata.source_tags, ...metadata.target_tags });
    // A model that learned terms has tags for them; lines without terms have none.
    if (tags.some((tag) => tag !== "<term>" && tag !== "<term-end>"))
      throw Error("a model whose lines begin with a tag is not supported");
    Object.assign(this, { ort, metadata, encoder, decoder });
    this.source = vocabularies[0];
    this.target = vocabularies.at(-1);
  }

  // Return the translation of a line, which is one sentence.
  async translate(line) {
    return line.trim() && this.target.decode(await this.search(this.source.encode(line))).trim();
  }

  // Return the most probable token after each other, up to EOS or the length limit.
  async search(ids) {
    const { longest_source, positions, max_length_ratio, max_length_extra } = this.metadata;
    const { bos, eos } = this.metadata.special_ids;
    if (ids.length > longest_source)
      throw Error(`a line of ${ids.length} tokens; the model has learned up to ${longest_source}`);
    const limit = Math.min(positions, Math.ceil(max_length_ratio * ids.length + max_length_extra));
    const source = this.integers(ids, [1, ids.length]);
    const memory = await this.encoder.run({ source });
    let past = {
      past_keys: this.withoutTokens(memory.memory_keys),
      past_values: this.withoutTokens(memory.memory_values),
    };
    const found = [];
    let last = bos;
    while (found.length < limit) {
      const last_ids = this.integers([last], [1]);
      const { logits, keys, values } = await this.decoder.run({ last_ids, source, ...memory, ...past });
      last = this.best(logits.data);
      if (last === eos) break;
      found.push(last);
      past = { past_keys: keys, past_values: values };
    }
    return found;
  }

  best(logits) {
    const { pad, unk, bos } = this.metadata.special_ids;
    for (const never of [pad, unk, bos]) logits[never] = -Infinity;
    return logits.reduce((best, logit, id) => (logit > logits[best] ? id : best), 0);
  }

  integers(values, shape) {
    return new this.ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
  }

  withoutTokens({ dims: [layers, batch, heads, , width] }) {
    return new this.ort.Tensor("float32", new Float32Array(), [layers, batch, heads, 0, width]);
  }
}

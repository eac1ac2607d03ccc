// Text to ids and back, from the SentencePiece model of an export, as mt.data.tokenizer does it.

const NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6;
const UNK = 1, EOS = 3;
const SPACE = "\u2581", ESCAPE = "\u{f2581}";
const UNKNOWN_PENALTY = 10; // of SentencePiece, below the lowest score

export class Vocabulary {
  constructor(model) {
    const [trainer, normalizer] = [2, 3].map((field) => new Map(messages(model, field).flat()));
    this.isBpe = trainer.get(3) === 2;
    this.isNormal = decodeText(normalizer.get(1)) === "mt.data.normalization";
    this.addsSpace = normalizer.get(3) !== 0;
    this.trims = normalizer.get(4) !== 0;
    this.pieces = messages(model, 1).map((fields) => {
      const piece = new Map(fields);
      return { text: decodeText(piece.get(1)), score: piece.get(2) ?? 0, kind: piece.get(3) ?? NORMAL };
    });
    const kinds = new Set(this.pieces.map((piece) => piece.kind));
    if (normalizer.get(2)?.length) throw Error("a tokenizer with rules of its own is not supported");
    if (kinds.has(USER_DEFINED) || (this.isBpe && kinds.has(UNUSED)))
      throw Error("user-defined and unused tokens are not supported");
    this.ids = new Map(); // of the tokens that are cut out of a text
    this.bytes = new Map();
    this.pieces.forEach(({ text, kind }, id) => {
      if (kind === NORMAL) this.ids.set(text, id);
      if (kind === BYTE) this.bytes.set(parseInt(text.slice(1, -1), 16), id);
    });
    const scores = [...this.ids.values()].map((id) => this.pieces[id].score);
    this.unknownScore = Math.fround(scores.reduce((a, b) => Math.min(a, b), 0) - UNKNOWN_PENALTY);
    this.longest = [...this.ids.keys()].reduce((longest, text) => Math.max(longest, [...text].length), 1);
  }

  // Return the ids of a line, EOS last.
  encode(line) {
    let text = this.isNormal ? normalizeSource(line) : line;
    text = text.replaceAll(ESCAPE, ESCAPE + "=").replaceAll(SPACE, ESCAPE + "_");
    if (this.trims) text = text.replace(/^ +| +$/g, "").replace(/ +/g, " ");
    if (text && this.addsSpace) text = " " + text;
    const characters = [...text.replaceAll(" ", SPACE)];
    const ids = [];
    for (const piece of this.isBpe ? this.merge(characters) : this.segment(characters)) {
      const id = this.ids.get(piece);
      if (id !== undefined) ids.push(id);
      else if (this.bytes.size)
        for (const byte of new TextEncoder().encode(piece)) ids.push(this.bytes.get(byte));
      else if (ids.at(-1) !== UNK) ids.push(UNK);
    }
    return [...ids, EOS];
  }

  // Return the most probable segmentation (Kudo 2018), with sums in float32 as in SentencePiece.
  segment(characters) {
    const best = [{ score: 0, begin: 0 }];
    for (let begin = 0; begin < characters.length; begin++) {
      let text = "";
      for (let end = begin + 1; end <= Math.min(characters.length, begin + this.longest); end++) {
        text += characters[end - 1];
        const id = this.ids.get(text);
        if (id === undefined && end > begin + 1) continue;
        const own = id === undefined ? this.unknownScore : this.pieces[id].score;
        const score = Math.fround(best[begin].score + own);
        if (!best[end] || score > best[end].score) best[end] = { score, begin };
      }
    }
    const pieces = [];
    for (let end = characters.length; end > 0; end = best[end].begin)
      pieces.unshift(characters.slice(best[end].begin, end).join(""));
    return pieces;
  }

  // Merge neighbours by falling score, the first of equal ones first (Sennrich et al. 2016).
  merge(pieces) {
    for (;;) {
      let at = -1, highest = -Infinity;
      for (let index = 0; index + 1 < pieces.length; index++) {
        const id = this.ids.get(pieces[index] + pieces[index + 1]);
        if (id !== undefined && this.pieces[id].score > highest)
          [at, highest] = [index, this.pieces[id].score];
      }
      if (at < 0) return pieces;
      pieces.splice(at, 2, pieces[at] + pieces[at + 1]);
    }
  }

  // Return the text of ids; bytes that form no character are left out.
  decode(ids) {
    let text = "", bytes = [];
    const readBytes = () => {
      const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
      text += decoder.decode(new Uint8Array(bytes)).replaceAll("\ufffd", "");
      bytes = [];
    };
    for (const id of ids) {
      const piece = this.pieces[id];
      if (piece.kind === BYTE) bytes.push(parseInt(piece.text.slice(1, -1), 16));
      else {
        readBytes();
        if (piece.kind === UNKNOWN) text += "\ufffd";
        else if (piece.kind !== CONTROL) text += piece.text.replaceAll(SPACE, " ");
      }
    }
    readBytes();
    return text.replace(/^ /, "")
      .replaceAll(ESCAPE + "_", SPACE).replaceAll(ESCAPE + "=", ESCAPE);
  }
}

const MARKS =
  "\u00ad\u2060\ufeff\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u034f\u061c\u200b\u200e\u200f" +
  "\u202a-\u202e\u2061-\u2064\u2066-\u206f\ufff9-\ufffb\u{e0100}-\u{e01ef}";
const BLANKS = " \\t-\\r\\x1c-\\x1f\\x85\\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000";
const WIDE = "\uff10-\uff19\uff21-\uff3a\uff41-\uff5a";
const OTHER_FORMS =
  "\uff61-\uff9f\ufb00-\ufb06\ufb13-\ufb17\ufb50-\ufd3d\ufd50-\ufdc7\ufdf0-\ufdf9" +
  "\ufe80-\ufefc\u{1d400}-\u{1d7ff}";
const ENDS = new RegExp(
  `^[${BLANKS}]*[${MARKS}][${BLANKS}${MARKS}]*|(?<![${BLANKS}${MARKS}])[${BLANKS}]*[${MARKS}][${BLANKS}${MARKS}]*$`,
  "gu",
);
const FORMS = new RegExp(
  `[${WIDE}](?:[\uff01-\uff5e\u3000]*(?<=[${WIDE}]))?(?:[！．？](?=[${BLANKS}]|$))?|[${OTHER_FORMS}]+`,
  "gu",
);

// Return a source text in its normal form, as mt.data.normalization.normalize_source.
export function normalizeSource(text) {
  return text
    .replace(ENDS, "")
    .replace(new RegExp(`[${MARKS}]+`, "gu"), "")
    .replace(FORMS, (form) => form.normalize("NFKC"))
    .replace(new RegExp(`[${BLANKS}]+`, "gu"), " ")
    .normalize("NFC");
}

const decodeText = (bytes) => new TextDecoder().decode(bytes ?? new Uint8Array());

// Return the fields [number, value] of each message `field` of a protocol buffers message.
function messages(content, field) {
  return fields(content).filter(([number]) => number === field).map(([, inner]) => fields(inner));
}

function fields(content) {
  const view = new DataView(content.buffer, content.byteOffset, content.byteLength);
  const found = [];
  let position = 0;
  const varint = () => {
    let value = 0, factor = 1, byte;
    do {
      byte = content[position++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte > 127);
    return value;
  };
  while (position < content.length) {
    const tag = varint();
    const kind = tag & 7;
    let value;
    if (kind === 0) value = varint();
    else {
      const length = kind === 2 ? varint() : kind === 5 ? 4 : 8;
      value = kind === 5 ? view.getFloat32(position, true) : content.subarray(position, position + length);
      position += length;
    }
    found.push([tag >>> 3, value]);
  }
  return found;
}

// Differences between the messages of two turns, word by word.

import { h } from "../lib/dom.js";

const MAX_WORDS = 1500; // of a text; longer ones are marked as a whole

/** Return for each side a map from its rows to nodes in which other words are marked. */
export function differences(left, right) {
  const marks = [new Map(), new Map()];
  for (const [a, b] of pairs(left, right)) {
    if (a?.text === b?.text) continue;
    const [first, second] = compare(a?.text ?? "", b?.text ?? "");
    if (a?.text) marks[0].set(a, first.map(([text, other]) => (other ? h("del", null, text) : text)));
    if (b?.text) marks[1].set(b, second.map(([text, other]) => (other ? h("ins", null, text) : text)));
  }
  return marks;
}

/** Say how many messages differ. */
export function parts(left, right) {
  const number = Math.max(left.size, right.size);
  return number ? `${number === 1 ? "One message differs" : `${number} messages differ`}; `
    + "other words are marked." : "Both have the same messages.";
}

function* pairs(left, right) {
  for (let n = 0; n < Math.max(left.length, right.length); n += 1) yield [left[n], right[n]];
}

const words = (text) => text.match(/\s+|[^\s]+/g) ?? [];

/** Return both texts as runs `[text, differs]`, by their longest common words. */
function compare(a, b) {
  const [x, y] = [words(a), words(b)];
  if (x.length > MAX_WORDS || y.length > MAX_WORDS) return [[[a, true]], [[b, true]]];
  const width = y.length + 1;
  const table = new Uint16Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i -= 1) {
    for (let j = y.length - 1; j >= 0; j -= 1) {
      table[i * width + j] = x[i] === y[j] ? table[(i + 1) * width + j + 1] + 1
        : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const [first, second] = [[], []];
  let [i, j] = [0, 0];
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) {
      add(first, x[i++], false);
      add(second, y[j++], false);
    } else if (j >= y.length || (i < x.length
      && table[(i + 1) * width + j] >= table[i * width + j + 1])) add(first, x[i++], true);
    else add(second, y[j++], true);
  }
  return [first, second];
}

function add(runs, text, differs) {
  const last = runs.at(-1);
  if (last?.[1] === differs) last[0] += text;
  else runs.push([text, differs]);
}

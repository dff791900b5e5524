// Figures of this node, from its metrics.
import { getFigures } from './node.js';

// metrics returns the samples of some metrics, by name: each {labels, value}.
export async function metrics(...names) {
  const out = Object.fromEntries(names.map((name) => [name, []]));
  for (const line of (await getFigures()).split('\n')) {
    const [, name, labels = '', value] = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    if (name in out) out[name].push({ labels: labelsOf(labels), value: Number(value) });
  }
  return out;
}

const labelsOf = (text) => Object.fromEntries([...text.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)].map((m) => [m[1], m[2]]));

// quantile is within how many seconds a part of all answers came, by the buckets of a histogram; NaN if there were none. Within a bucket
// it assumes that they are spread evenly.
export function quantile(buckets, part) {
  const list = buckets.map((b) => [Number(b.labels.le === '+Inf' ? Infinity : b.labels.le), b.value]).sort((a, b) => a[0] - b[0]);
  const all = list.at(-1)?.[1] ?? 0;
  let [from, before] = [0, 0];
  for (const [edge, n] of list) {
    if (all && n >= part * all) return edge === Infinity ? from : from + ((edge - from) * (part * all - before)) / Math.max(1, n - before);
    [from, before] = [edge, n];
  }
  return NaN;
}

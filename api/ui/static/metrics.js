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

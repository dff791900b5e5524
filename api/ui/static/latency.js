// How long answers take at this node.
import { metrics, quantile } from './metrics.js';

const doors = [
  ['HTTP', 'rlnode_check_seconds'],
  ['Envoy', 'rlnode_envoy_seconds'],
  ['admin plane', 'rlnode_admin_check_seconds'],
  ['to the owner', 'rlnode_forward_seconds'],
];

function seconds(s) {
  if (Number.isNaN(s)) return '–';
  if (s < 0.001) return `${(s * 1e6).toFixed(0)} µs`;
  return s < 1 ? `${(s * 1e3).toFixed(s < 0.01 ? 1 : 0)} ms` : `${s.toFixed(1)} s`;
}

// latencies returns, for each door that has answered, within which time half of the answers and nearly all of them came.
export async function latencies() {
  const found = await metrics(...doors.map(([, name]) => `${name}_bucket`));
  return doors.map(([door, name]) => {
    const buckets = found[`${name}_bucket`];
    return { door, half: seconds(quantile(buckets, 0.5)), most: seconds(quantile(buckets, 0.99)), answers: Math.max(0, ...buckets.map((b) => b.value)) };
  }).filter((l) => l.answers > 0);
}

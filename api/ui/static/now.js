// What happens now, in the whole cluster.
import { byId, keyed, make, names, number, percent, rate, setClass, setText } from './dom.js';
import { plot, stack } from './chart.js';
import { kept, ways } from './rates.js';

// meanings explain the ways to decide.
const meanings = {
  owner: 'decided by the node that was asked, which owns the subject',
  lease: 'decided by the node that was asked, from what it has leased of the owner',
  forward: 'the owner was asked',
  standby: 'the standby acted for an owner that could not be reached',
  fallback: 'decided by a node that could reach neither owner nor standby',
  list: 'allowed or refused by a list',
  none: 'no rule applied',
};

export const twoMinutes = ['−2 min', '−1 min', 'now'];

export function showNow(meter, report) {
  const r = meter.rates;
  setText(byId('checks-rate'), rate(r?.checks));
  setText(byId('refused-rate'), rate(r?.refused));
  setClass(byId('refused-rate'), r?.refused > 0 ? 'big refusing' : 'big');
  setText(byId('checks-note'), whose(report.nodes));
  setText(byId('refused-note'), r ? `${percent(r.refused, r.checks)} of all checks` : 'of all checks');
  plot(byId('checks-chart'), meter.history, ['checks'], kept, twoMinutes);
  plot(byId('refused-chart'), meter.history, ['refused'], kept, twoMinutes);
  showUnmatched(r, report);
  stack(byId('ways-bar'), r?.ways);
  keyed(byId('ways'), ways, (way) => way, wayItem, (e, way) => {
    const n = r?.ways[way] ?? 0;
    setClass(e, n ? '' : 'zero');
    setText(e.children[2], rate(r ? n : null));
    setText(e.children[3], r ? percent(n, r.checks) : '');
  });
}

// whose says of which nodes counts are.
export function whose(nodes) {
  const silent = nodes.filter((n) => !n.answered);
  if (silent.length) return `${nodes.length - silent.length} of ${nodes.length} nodes, without ${names(silent)}`;
  return nodes.length === 1 ? 'this node, the only one' : `the whole cluster, ${nodes.length} nodes`;
}

function showUnmatched(r, report) {
  setText(byId('unmatched-rate'), rate(r ? r.ways.none ?? 0 : null));
  setClass(byId('unmatched-rate'), r?.ways.none > 0 ? 'big warn-text' : 'big');
  const all = Object.values(report.checks).reduce((n, byWay) => n + (byWay.none ?? 0), 0);
  setText(byId('unmatched-note'), all ? `checks a second; ${number(all)} since the nodes began. The default decides them: is a rule missing, or an attribute?` : 'checks a second, and none since the nodes began');
}

// wayItem is a way to decide, its value and its part of all.
export const wayItem = (way) =>
  make('li', { title: meanings[way] }, make('i', { class: `way-${way}` }), make('span', {}, way), make('span', { class: 'value' }), make('span', { class: 'part' }));

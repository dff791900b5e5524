// What happens now, in the whole cluster.
import { byId, keyed, make, percent, rate, setClass, setText } from './dom.js';
import { line, stack } from './chart.js';
import { ways } from './rates.js';

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

export function showNow(meter, report) {
  const r = meter.rates;
  setText(byId('checks-rate'), rate(r?.checks));
  setText(byId('refused-rate'), rate(r?.refused));
  setClass(byId('refused-rate'), r?.refused > 0 ? 'big refusing' : 'big');
  const answered = report.nodes.filter((n) => n.answered).length;
  setText(byId('checks-note'), answered === 1 && report.nodes.length === 1 ? 'this node, the only one' : `by ${answered} of ${report.nodes.length} nodes`);
  setText(byId('refused-note'), r ? `${percent(r.refused, r.checks)} of all checks` : 'of all checks');
  line(byId('checks-chart'), meter.history, ['checks']);
  line(byId('refused-chart'), meter.history, ['refused']);
  stack(byId('ways-bar'), r?.ways);
  keyed(byId('ways'), ways, (way) => way, createWay, (e, way) => {
    const n = r?.ways[way] ?? 0;
    setClass(e, n ? '' : 'zero');
    setText(e.children[2], rate(r ? n : null));
    setText(e.children[3], r ? percent(n, r.checks) : '');
  });
}

const createWay = (way) =>
  make('li', { title: meanings[way] }, make('i', { class: `way-${way}` }), make('span', {}, way), make('span', { class: 'value' }), make('span', { class: 'part' }));

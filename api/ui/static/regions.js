// The regions: who is there, and what each has of the limits that all of them share.
import { byId, make, number, setText, shown } from './dom.js';
import { get, subject } from './node.js';
import { rows, subjectLink } from './parts.js';
import { store } from './store.js';

const slowPace = 3; // turns from question to question
const nearest = 5; // subjects of each rule
const rulesAsked = 8;

let turns = 0;

export const regions = {
  open() {
    turns = 0;
  },

  questions() {
    return turns++ % slowPace === 0 && store.doc ? [askShares()] : [];
  },

  heardRules() {
    turns = 0;
  },

  show() {
    const list = [...(store.cluster.regions ?? [])].sort((a, b) => (a.name < b.name ? -1 : 1));
    setText(byId('regions-note'), list.length > 1 ? `${number(list.length)} regions share the limits with scope: global.` : 'There is only this region.');
    rows(byId('regions-list'), list, (r) => r.name, (r) => [
      [make('span', { class: `dot ${r.reachable ? 'good' : 'bad'}` }), ' ', shown(r.name), dashboardOf(r.address)],
      r.reachable ? 'reachable' : 'not reachable from here', r.members ? number(r.members) : '–',
      [r.primary ? 'primary: rules are written there' : '', r.committed ? '' : 'not known to all yet: it has no share'].filter(Boolean).join('; ') || '–',
    ], { numbers: [2], empty: 'None.' });
  },
};

// dashboardOf leads to the dashboard of a node of another region, if it is at the same port as this one.
function dashboardOf(address) {
  if (!address || !/^[\d.]+$|^[\da-f:]+$/i.test(address)) return '';
  const host = address.includes(':') ? `[${address}]` : address;
  const port = location.port ? `:${location.port}` : '';
  return make('small', {}, make('a', { href: `${location.protocol}//${host}${port}/ui/#/regions`, rel: 'noreferrer' }, `dashboard at ${address}`));
}

// askShares asks what each region has of the subjects that are nearest to a global limit.
async function askShares() {
  const global = (store.doc.rules ?? []).filter((r) => r.scope === 'global').slice(0, rulesAsked);
  if (!global.length) {
    setText(byId('shares-note'), 'No rule has scope: global, so no limit is shared.');
    return rows(byId('shares'), [], () => '', () => [], { empty: '' });
  }
  const lines = [];
  for (const rule of global) {
    const near = await get(`v1/top?${new URLSearchParams({ by: 'near', rule: rule.name, n: nearest })}`);
    for (const s of near.subjects) {
      const usage = await get(`v1/usage?${subject(rule.name, [s.key].flat())}`);
      for (const [name, region] of Object.entries(usage.regions ?? {}).sort(([a], [b]) => (a < b ? -1 : 1))) {
        for (const l of region.limits?.length ? region.limits : [null]) lines.push({ rule: rule.name, key: s.key, region: name, reachable: region.reachable, l });
      }
    }
  }
  if (!byId('shares')) return undefined;
  setText(byId('shares-note'), `Of the subjects that are nearest to a limit, of ${global.map((r) => shown(r.name)).join(', ')}.`);
  const cell = (one, name) => (one.l ? number(one.l[name] ?? 0) : '–');
  rows(byId('shares'), lines, (one) => JSON.stringify([one.rule, one.key, one.region, one.l?.name]), (one) => [
    subjectLink(one.rule, one.key), [shown(one.region), one.reachable ? '' : make('small', {}, 'not reachable from here')],
    cell(one, 'share'), cell(one, 'own'), cell(one, 'lent'), cell(one, 'borrowed'), cell(one, 'remaining'),
  ], { numbers: [2, 3, 4, 5, 6], empty: 'Nobody has used anything of them yet.' });
  for (const row of byId('shares').rows) for (const i of [4, 5]) row.cells[i].className = 'wide num';
  return undefined;
}

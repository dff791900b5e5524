// The nodes: how they are, and what can be done about them.
import { byId, keyed, make, number, percent, rate, setClass, setText, shown, span } from './dom.js';
import { change } from './confirm.js';
import { membersOf, outageText } from './events.js';
import { get, send } from './node.js';
import { metrics } from './metrics.js';
import { button, clock, moment, rows } from './parts.js';
import { store } from './store.js';
import { clockText } from './trouble.js';

const states = { alive: 'good', failed: 'bad', left: '' };
const slowPace = 5; // turns from question to question
const pastPace = 15; // and to one about the last day
const figures = [
  'rlnode_checkpoint_file_bytes', 'rlnode_raft_log_bytes', 'rlnode_checkpoint_age_seconds', 'rlnode_clock_offset_seconds',
  'rlnode_certificate_expiry_seconds', 'rlnode_connections', 'rlnode_connections_max',
];

let level = null; // the last of /v1/level
let past = null; // outages of the last day, and who leads since when
let turns = 0;

export const nodes = {
  open() {
    [level, past, turns] = [null, null, 0];
    byId('level-raise').addEventListener('click', raise);
    byId('join-copy').addEventListener('click', copy);
  },

  questions() {
    const list = turns % slowPace ? [] : [get('v1/level').then(showLevel), metrics(...figures).then(showFigures)];
    if (turns++ % pastPace === 0) list.push(membersOf().then((told) => { past = told; }));
    return list;
  },

  show() {
    const { cluster, report, meter } = store;
    const activity = new Map((report?.nodes ?? []).map((n) => [n.id, n]));
    const all = cluster.members.reduce((n, m) => n + m.partitions, 0);
    const members = [...cluster.members].sort((a, b) => (a.name < b.name ? -1 : 1));
    const zones = new Set(members.map((m) => `${m.region}/${m.zone}`)).size > 1;
    setText(byId('members-note'), noteOf(cluster));
    keyed(byId('members'), members, (m) => m.id, create, (row, m) => {
      const [node, role, partitions, checks] = row.cells;
      const away = m.state === 'alive' && !m.reachable;
      const there = activity.get(m.id);
      setClass(node.querySelector('.dot'), `dot ${away ? 'warn' : states[m.state] ?? ''}`);
      setText(node.querySelector('.name'), shown(m.name));
      const state = node.querySelector('.word');
      setText(state, away ? 'not reachable from here' : m.behind ? 'behind' : m.via ? `by way of ${shown(m.via)}` : m.state);
      setClass(state, m.state === 'alive' && !away && !m.behind && !m.via ? 'word hidden' : `word tag ${m.state === 'failed' ? 'bad-text' : ''}`);
      const [where, what, takes, unwell] = node.querySelectorAll('small');
      setText(where, [m.address, zones || m.region !== 'default' ? m.region : '', m.zone].filter(Boolean).map((t) => shown(t)).join(' · '));
      setText(role, m.leader ? 'leader' : m.voter ? 'voter' : '–');
      setText(partitions, m.in_ring || m.partitions ? `${number(m.partitions)} (${percent(m.partitions, all)})` : '–');
      setText(checks, there?.answered ? rate(meter.nodes.get(m.id)) : '–');
      const known = level?.members?.find((l) => l.id === m.id);
      setText(what, [m.leader && past?.leads?.name === m.name ? `leads since ${clock(past.leads.at)}` : '', known ? `release ${shown(known.release)}, level ${known.knows}` : '', there?.answered ? `up ${span(there.uptime_ms)}` : m.state !== 'alive' && store.since.get(m.name) ? `${m.state} since ${moment(store.since.get(m.name))}` : ''].filter(Boolean).join(' · '));
      setText(takes, [there?.vitals ? vitalsText(there.vitals) : '', m.clock_offset_ms === undefined ? '' : `clock ${clockText(m)}`].filter(Boolean).join(' · '));
      setText(unwell, unwellText(past?.outages.filter((o) => o.name === m.name) ?? []));
      row.querySelector('button').hidden = m.state === 'alive' || m.name === report.node;
    });
    const seeds = members.filter((m) => m.state === 'alive').slice(0, 3).map((m) => m.address);
    const field = byId('join');
    const command = `rlnode serve --name NAME --data-dir DIR --join ${seeds.join(',')}${members[0]?.region && members[0].region !== 'default' ? ` --region ${members[0].region}` : ''}`;
    if (field.value !== command) field.value = command;
  },
};

function noteOf(cluster) {
  const all = cluster.members.length;
  const there = cluster.members.filter((m) => m.state === 'alive').length;
  if (cluster.starting) return `${there} found so far`;
  if (cluster.view === 'cut-off') return `${there} of ${all} alive as far as can be seen from here; partitions as last agreed, epoch ${cluster.epoch}`;
  return `${there} of ${all} alive, epoch ${cluster.epoch}${cluster.settled ? '' : ', partitions are moving'}`;
}

const create = (m) =>
  make('tr', {},
    make('td', {}, make('span', { class: 'state' }, make('span', { class: 'dot' }), make('span', { class: 'name' })), make('span', { class: 'word' }), make('small'), make('small'), make('small'), make('small', { class: 'warn-text' })),
    make('td', { class: 'word-only' }), make('td', { class: 'num' }), make('td', { class: 'num' }),
    make('td', {}, button('Remove', () => remove(m.id), { class: 'plain small', 'aria-label': `Remove ${shown(m.name)}` })));

// unwellText says when a node was last away, and how often in the last day.
function unwellText(outages) {
  if (!outages.length) return '';
  return `Last unwell: ${outageText(outages[0])}. ${outages.length} ${outages.length === 1 ? 'outage' : 'outages'} in the last day.`;
}

function remove(id) {
  const m = store.cluster.members.find((one) => one.id === id);
  if (!m) return;
  change({
    title: `Remove ${shown(m.name)}`, button: 'Remove it', scope: 'admin',
    rehearse: async () => {
      const now = (await get('v1/cluster')).members.find((one) => one.id === id);
      if (!now) throw new Error('It is no longer a member.');
      if (now.state === 'alive') throw new Error(`${now.name} is alive. Only a node that is gone for good is removed here; one that is to go runs rlnode leave.`);
      return [`${shown(now.name)} at ${shown(now.address)} is ${now.state}. It owned ${number(now.partitions)} partitions${now.voter ? ' and is a voter' : ''}. It is forgotten, and may come back only under a new identity.`,
        'Remove it only if it is gone for good: what only it knew stays with it.'];
    },
    make: async () => {
      const told = await send('DELETE', `v1/members/${encodeURIComponent(m.name)}`);
      return `${shown(told.removed)} was removed`;
    },
  });
}

function showLevel(l) {
  level = l;
  if (!byId('level-note')) return;
  const low = (l.members ?? []).filter((m) => m.knows <= l.level).map((m) => shown(m.name));
  setText(byId('level-note'), l.highest > l.level ? `Level ${l.level} is agreed on, and all nodes know ${l.highest}.` : `Level ${l.level} is agreed on, and ${low.length ? `${low.join(', ')} ${low.length === 1 ? 'knows' : 'know'} no higher one` : 'no higher one is known'}.`);
  byId('level-raise').disabled = l.highest <= l.level;
}

function raise() {
  let to = 0;
  change({
    title: 'Raise the feature level', button: 'Raise it', scope: 'admin',
    rehearse: async () => {
      const l = await get('v1/level');
      to = l.highest;
      return [`From ${l.level} to ${l.highest}. It can’t be lowered again: releases that do not know level ${l.highest} can no longer join.`];
    },
    make: async () => `The feature level is ${(await send('POST', `v1/level?to=${to}`)).level}`,
    done: () => { turns = 0; },
  });
}

async function copy() {
  const field = byId('join');
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
    setText(byId('join-copied'), 'Copied.');
  } catch {
    setText(byId('join-copied'), 'It is marked: copy it with the keyboard.');
  }
}

const of = (n, most, write) => (most ? `${write(n)} of ${write(most)} (${percent(n, most)})` : write(n));

// vitalsText says how much a node takes, and of how much.
function vitalsText(v) {
  return [`counters ${of(v.counters, v.max_counters, number)}`, v.memory_bytes ? `memory ${of(v.memory_bytes, v.max_memory_bytes, bytes)}` : '',
    v.disk_bytes ? `disk ${bytes(v.disk_bytes)}${v.disk_free_bytes ? `, ${bytes(v.disk_free_bytes)} free` : ''}` : ''].filter(Boolean).join(' · ');
}

const signed = (n) => `${n < 0 ? '−' : n > 0 ? '+' : ''}${Math.abs(n)}`;

const bytes = (n) => (n >= 2 ** 30 ? `${(n / 2 ** 30).toFixed(1)} GiB` : n >= 2 ** 20 ? `${(n / 2 ** 20).toFixed(1)} MiB` : `${(n / 1024).toFixed(0)} KiB`);

function showFigures(found) {
  if (!byId('figures')) return;
  const one = (name) => found[name][0]?.value;
  const line = (what, value, write, bound = '–') => (value === undefined || Number.isNaN(value) ? null : { what, now: write(value), bound });
  const clock = one('rlnode_clock_offset_seconds');
  const list = [
    line('Counters on disk', one('rlnode_checkpoint_file_bytes'), bytes),
    line('Log of the cluster on disk', one('rlnode_raft_log_bytes'), bytes),
    line('Written to disk', one('rlnode_checkpoint_age_seconds'), (s) => `${span(s * 1000)} ago`),
    line('Clock', clock, (s) => `${signed(Math.round(1000 * s))} ms off`),
    ...found.rlnode_certificate_expiry_seconds.map((c) => line(`Certificate: ${shown(c.labels.use ?? '')}`, c.value, (s) => (s > 0 ? `ends in ${span(s * 1000)}` : 'has ended'))),
    ...found.rlnode_connections.map((c) => line(`Connections, ${shown(c.labels.plane ?? c.labels.door ?? '')}`, c.value, number, number(found.rlnode_connections_max.find((m) => JSON.stringify(m.labels) === JSON.stringify(c.labels))?.value ?? 0))),
  ].filter(Boolean);
  rows(byId('figures'), list, (l) => l.what, (l) => [l.what, l.now, l.bound], { numbers: [1, 2], empty: 'Its metrics can’t be read.' });
}

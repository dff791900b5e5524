// Lists, and what is written about subjects and blocks: of the document and beside it.
import { byId, make, number, offer, setText, shown } from './dom.js';
import { Choice } from './choice.js';
import { changeEntry, listed, pageOf, untilCell } from './entries.js';
import { changeText, entryText, liftsOf } from './events.js';
import { get, getLarge, target } from './node.js';
import { button, onSubmit, rows, time } from './parts.js';
import { store } from './store.js';

const slowPace = 5; // turns from question to question
const most = 200; // rows
const logged = 15; // changes

let all = []; // what is listed
let more = false; // there is more than was asked for
let choice = null;
let turns = 0;

export const lists = {
  open() {
    [all, more, turns] = [[], false, 0];
    choice = new Choice('add');
    byId('lists-filter').addEventListener('input', draw);
    byId('add-kind').addEventListener('change', arrange);
    onSubmit(byId('add'), add);
    arrange();
  },

  heardRules() {
    choice.use(store.doc);
    offer(byId('add-tier'), Object.keys(store.doc.tiers ?? {}).map((name) => [name]));
    arrange();
  },

  questions() {
    return turns++ % slowPace === 0 ? [ask(), askLog()] : [];
  },
};

// ask reads the lists with their origin, and the entries about subjects and the blocks, which may sleep.
async function ask() {
  const [deny, allow, subjects, blocks] = await Promise.all([getLarge('v1/lists/deny'), getLarge('v1/lists/allow'), pageOf('subject'), pageOf('block')]);
  const ofList = (kind) => (entry) => ({ kind, entry, origin: entry.origin });
  const beside = (item) => ({ ...item, origin: 'entry' });
  all = [...deny.map(ofList('deny')), ...allow.map(ofList('allow')), ...subjects.list.map(beside), ...blocks.list.map(beside)]
    .map((item) => ({ ...item, text: entryText(item) }))
    .sort((a, b) => (b.origin !== 'document') - (a.origin !== 'document')); // what people added lately is what people look for
  more = subjects.more || blocks.more;
  draw();
}

function draw() {
  const body = byId('entries');
  if (!body) return;
  const filter = byId('lists-filter').value.trim().toLowerCase();
  const list = all.filter((e) => !filter || `${e.kind} ${e.text} ${e.entry.note ?? ''} ${e.entry.by ?? ''} ${e.origin}`.toLowerCase().includes(filter));
  const beside = all.filter((e) => e.origin !== 'document').length;
  setText(byId('lists-note'), `${number(beside)} added here, ${number(all.length - beside)} from the rules document${list.length > most ? `; ${most} are shown, the filter finds the others` : ''}${more ? '; there are more about subjects than are listed' : ''}.`);
  const some = list.slice(0, most);
  const keyOf = (e) => JSON.stringify([e.kind, e.text, e.origin]);
  rows(body, some, keyOf, cells, { empty: all.length ? 'None with that.' : 'There is none.' });
  some.forEach((e, i) => act(body.rows[i].cells[3], e));
}

const cells = (e) => [
  [make('span', { class: 'word-only' }, e.kind), make('small', { class: 'nowrap' }, e.origin === 'both' ? 'document, entry' : e.origin), e.asleep ? make('span', { class: 'tag', title: 'It names a tier or a rule that the document lacks.' }, 'asleep') : ''],
  [make('span', { class: 'mono', dir: 'auto' }, e.text), make('small', {}, shown(e.entry.note ?? '', 300))],
  untilCell(e.entry),
  null,
];

function act(cell, e) {
  if (cell.firstChild) return;
  if (e.origin === 'document') cell.append(make('a', { href: '#/document' }, 'Edit'));
  else cell.append(button(e.kind === 'block' ? 'Lift' : 'End', () => changeEntry(e, 'DELETE', again), { class: 'plain small', 'aria-label': `End ${e.kind} ${e.text}` }));
}

async function askLog() {
  const [log, lifts] = await Promise.all([get(`v1/entries/log?n=${logged}`), liftsOf()]);
  if (!byId('log')) return;
  const lines = [...log.changes.map((c) => ({ key: c.version, at: Date.parse(c.when), what: changeText(c) })), ...lifts].sort((a, b) => b.at - a.at);
  rows(byId('log'), lines.slice(0, logged), (c) => c.key, (c) => [time(c.at), c.what], { empty: 'Nothing was changed yet.' });
}

function again() {
  turns = 0;
}

// arrange shows the fields that the kind of entry needs.
function arrange() {
  const kind = byId('add-kind').value;
  byId('add-rule-label').hidden = kind !== 'block';
  byId('add-keys').hidden = kind !== 'block';
  byId('add-tier-label').hidden = kind !== 'subject';
  byId('add-attribute-label').hidden = kind === 'block';
  byId('add-value-label').hidden = kind === 'block';
}

function add() {
  const kind = byId('add-kind').value;
  const [attribute, value] = [byId('add-attribute').value.trim(), byId('add-value').value.trim()];
  const extra = { for: byId('add-for').value || undefined, note: byId('add-note').value.trim() || undefined };
  if (kind === 'block') return changeEntry({ kind, entry: { ...target(choice.rule, choice.key), ...extra }, text: `${choice.key.join(' · ')} of ${choice.rule}` }, 'POST', again);
  if (kind === 'subject') return changeEntry({ kind, entry: { attribute, value, tier: byId('add-tier').value, ...extra }, text: `${attribute}=${value}` }, 'PUT', again);
  return changeEntry(listed(kind, attribute, value, extra), 'POST', again);
}

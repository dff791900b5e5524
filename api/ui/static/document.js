// The rules document: its text, its versions, and what a check would be answered.
import { byId, make, number, setText, shown } from './dom.js';
import { change } from './confirm.js';
import { differences } from './diff.js';
import { get, getText, send } from './node.js';
import { button, discardDraft, keepDraft, mistakes, onSubmit, rows, time } from './parts.js';
import { Try } from './try.js';
import { store } from './store.js';

const most = 1 << 20; // characters that can be edited here

let inForce = null; // the text that the form was filled with, and its version
let trial = null;

export const documents = {
  open() {
    inForce = null;
    trial = new Try();
    onSubmit(byId('edit'), apply);
    byId('text').addEventListener('input', drawLines);
    byId('text').addEventListener('scroll', () => { byId('lines').scrollTop = byId('text').scrollTop; });
    byId('validate').addEventListener('click', validate);
    keepDraft(byId('text'), 'the document', () => inForce?.text);
    byId('undo').addEventListener('click', refill);
  },

  heardRules() {
    trial.choice.use(store.doc);
    fill(false);
    askVersions();
  },
};

// fill puts the text in force into the form. What a person has typed stays, unless they want it gone.
async function fill(anew) {
  const field = byId('text');
  const before = field.value;
  const newer = () => note(`, and there is a newer one: ${store.doc.rules_version}. What you typed stays.`);
  if (!anew && inForce && before !== inForce.text) return newer();
  try {
    const next = await getText('v1/rules');
    if (byId('text') !== field) return undefined;
    if (!anew && inForce && field.value !== before) return newer(); // typed meanwhile
    inForce = next;
    field.value = store.drafts.get(location.hash)?.text ?? next.text;
    field.readOnly = next.text.length > most;
    byId('document-result').replaceChildren();
    drawLines();
    return note(field.readOnly ? '. It is too long to be edited here.' : '');
  } catch (e) {
    if (byId('text') === field) byId('document-result').replaceChildren(make('p', { class: 'bad-text' }, e.message));
    return undefined;
  }
}

// refill forgets what a person has typed.
function refill() {
  discardDraft();
  return fill(true);
}

const note = (more) => setText(byId('document-note'), `Version ${inForce.version.replaceAll('"', '')}, ${number(inForce.text.split('\n').length - 1)} lines${more}`);

// drawLines numbers the lines, those with mistakes apart.
function drawLines(wrong = new Set()) {
  const n = byId('text').value.split('\n').length;
  const marked = wrong instanceof Set ? wrong : new Set();
  byId('text').rows = Math.min(32, Math.max(6, n + 1));
  const list = byId('lines');
  if (!marked.size) return setText(list, Array.from({ length: n }, (_, i) => i + 1).join('\n'));
  return list.replaceChildren(...Array.from({ length: n }, (_, i) => make('span', marked.has(i + 1) ? { class: 'wrong' } : {}, `${i + 1}\n`)));
}

function complain(e, into = byId('document-result')) {
  into.replaceChildren(...mistakes(e));
  const lines = new Set(e.mistakes.map((m) => m.line).filter(Boolean));
  drawLines(lines);
  const [first] = [...lines].sort((a, b) => a - b);
  if (!first) return;
  const field = byId('text');
  const from = field.value.split('\n').slice(0, first - 1).join('\n').length + (first > 1 ? 1 : 0);
  field.focus();
  field.setSelectionRange(from, from + (field.value.split('\n')[first - 1] ?? '').length);
}

async function validate() {
  const result = byId('document-result');
  result.replaceChildren(make('p', { class: 'muted' }, 'Asking the node…'));
  try {
    const d = await send('POST', 'v1/rules/diff', byId('text').value);
    drawLines();
    result.replaceChildren(make('p', { class: 'good-text' }, 'It is valid.'), ...differences(d));
  } catch (e) {
    complain(e);
  }
}

function apply() {
  const text = byId('text').value;
  let version = '';
  change({
    title: 'Apply the document', button: 'Apply', scope: 'admin', reason: true,
    rehearse: async () => {
      const d = await send('POST', 'v1/rules/diff', text);
      version = `"${d.from}"`;
      return differences(d);
    },
    make: async (message) => {
      const written = await send('PUT', `v1/rules?${new URLSearchParams({ via: 'dashboard', message })}`, text, version);
      inForce = null;
      return `Version ${written.version} is in force`;
    },
    done: refill,
  });
}

// askVersions lists the versions. They are asked for again when there is another one.
async function askVersions() {
  let versions = [];
  try {
    ({ versions } = await get('v1/rules/versions'));
  } catch (e) {
    byId('version-diff')?.replaceChildren(make('p', { class: 'bad-text' }, e.message));
    return;
  }
  if (!byId('versions')) return;
  rows(byId('versions'), versions, (v) => `${v.version} ${v === versions[0]}`, versionCells); // one that is not in force has another button
  versions.forEach((v, i) => {
    const cell = byId('versions').rows[i].cells[2];
    if (cell.firstElementChild) return;
    if (i + 1 < versions.length) cell.append(button('Diff', () => showDiff(versions[i + 1].version, v.version), { class: 'plain small', 'aria-label': `What version ${v.version} changed` }), ' ');
    if (i > 0) cell.append(button(`Roll back to ${v.version}`, () => rollBack(v.version), { class: 'plain small', 'aria-label': `Roll back to ${v.version}` }));
  });
}

const versionCells = (v) => [
  [String(v.version), v.version === store.doc?.rules_version ? make('span', { class: 'tag' }, 'in force') : '', make('small', {}, time(Date.parse(v.when)))],
  [shown(v.what), make('small', {}, [[v.by, v.via].filter(Boolean).map((t) => shown(t)).join(', '), v.message ? shown(v.message, 300) : ''].filter(Boolean).join(' · '))],
  null,
];

async function showDiff(from, to) {
  const result = byId('version-diff');
  try {
    const d = await send('POST', `v1/rules/diff?${new URLSearchParams({ from, to })}`);
    result.replaceChildren(make('h4', {}, `From version ${from} to ${to}`), ...differences(d));
  } catch (e) {
    result.replaceChildren(make('p', { class: 'bad-text' }, e.message));
  }
}

function rollBack(to) {
  let version = '';
  change({
    title: `Roll back to version ${to}`, button: 'Roll back', scope: 'admin', reason: true,
    rehearse: async () => {
      const from = store.cluster.rules_version;
      const d = await send('POST', `v1/rules/diff?${new URLSearchParams({ from, to })}`);
      version = `"${from}"`;
      return differences(d);
    },
    make: async (message) => {
      const written = await send('PUT', `v1/rules?${new URLSearchParams({ version: to, message: message || `rolled back to version ${to}` })}`, undefined, version);
      inForce = null;
      return `Version ${written.version} is in force, with the rules of version ${to}`;
    },
    done: refill,
  });
}

// Entries beside the document: what they say, and how they are written and ended.
import { make, shown } from './dom.js';
import { change } from './confirm.js';
import { entryText } from './events.js';
import { get, send } from './node.js';
import { moment, time } from './parts.js';
import { store } from './store.js';

// listed is an entry of a list for one value.
export const listed = (list, name, value, more) => ({ kind: list, entry: { [name]: value, ...more }, text: `${name}=${value}` });

const meta = ['until', 'note', 'by', 'when', 'origin'];

// bare is an entry without who wrote it and until when: what identifies it.
const bare = (entry) => Object.fromEntries(Object.entries(entry).filter(([name]) => !meta.includes(name)));

// placeOf says where an entry is written or ended, and with what.
function placeOf({ kind, entry }, method) {
  if (kind === 'block') return ['v1/blocks', method === 'DELETE' ? { rule: entry.rule, key: entry.key } : entry];
  if (kind === 'subject') {
    const { attribute, value, ...rest } = entry;
    const path = `v1/subjects/${encodeURIComponent(attribute)}/${encodeURIComponent(value)}`;
    return [path, method === 'DELETE' ? undefined : rest];
  }
  return [`v1/lists/${kind}/entries`, method === 'DELETE' ? bare(entry) : entry];
}

// untilText says when an entry ends.
export const untilText = (entry) => (entry.until ? `until ${moment(Date.parse(entry.until))}` : 'without an end');

// untilCell says until when an entry holds, and who wrote it when.
export const untilCell = (entry) => [entry.until ? time(Date.parse(entry.until)) : 'no end',
  entry.by ? make('small', {}, shown(entry.by), entry.when ? `, ${moment(Date.parse(entry.when))}` : '') : ''];

// scopeOf is the scope that a change needs. The scope entries is enough for denying and blocking single values for a time.
const scopeOf = ({ kind }) => (kind === 'deny' || kind === 'block' ? ['entries', 'admin'] : 'admin');

// changeEntry asks whether an entry shall be written, or ended, and does it. The node says what that is.
export function changeEntry(item, method, done) {
  const ends = method === 'DELETE';
  const [path, body] = placeOf(item, method);
  const text = item.text.replace(/^block /, '');
  const word = item.kind === 'block' ? (ends ? 'Lift' : 'Block') : item.kind === 'subject' ? (ends ? 'End' : 'Write') : ends ? 'End' : item.kind === 'deny' ? 'Deny' : 'Allow';
  change({
    title: item.kind === 'block' && ends ? `Lift the block of ${shown(text)}` : `${word} ${shown(item.text)}`, button: word, scope: scopeOf(item),
    rehearse: async () => explain(item, ends, await send(method, `${path}?dry_run=true`, body)),
    make: async () => {
      const told = await send(method, path, body);
      if (!told.entry) return `The block of ${shown(text)} was lifted`;
      const what = `${item.kind} ${entryText({ kind: item.kind, entry: told.entry })}`;
      return ends ? `Ended: ${what}` : `In force: ${what}, ${untilText(told.entry)}`;
    },
    done,
  });
}

// explain says what a dry run has told.
function explain({ kind }, ends, told) {
  if (!told.entry) return ['The block that a refusal began ends now. What is used stays used.', make('p', { class: 'muted' }, 'If it asks as before, its next refusal begins another one. To keep it free, allow it for a time, or raise its limit.')];
  const line = `${kind} ${entryText({ kind, entry: told.entry })}, ${untilText(told.entry)}`;
  const note = told.entry.note ? make('p', { class: 'muted' }, `Note: ${shown(told.entry.note, 300)}`) : '';
  if (ends) return ['This ends now:', make('p', {}, make('b', {}, line)), note, make('p', { class: 'muted' }, `It was written by ${shown(told.entry.by ?? 'nobody known')}.`)];
  const before = told.before ? make('p', { class: 'warn-text' }, `It replaces one by ${shown(told.before.entry.by ?? 'nobody known')}, ${untilText(told.before.entry)}${told.before.entry.note ? `: ${shown(told.before.entry.note, 300)}` : ''}.`) : make('p', { class: 'muted' }, 'There is none yet.');
  return ['This will be in force:', make('p', {}, make('b', {}, line)), note, before];
}

// pageOf reads the entries of a kind, as far as they are shown.
export async function pageOf(kind, most = 1000) {
  const page = await get(`v1/entries?${new URLSearchParams({ kind, n: most })}`);
  return { list: page.entries, more: !!page.next };
}

const same = (a, b) => JSON.stringify([a].flat().map(String)) === JSON.stringify([b].flat().map(String));

// entriesAbout lists the entries about a subject of a rule: blocks of it, and what names a value of its key.
export async function entriesAbout(spec, { rule, key }) {
  const names = (spec?.key ?? []).map((part) => [part].flat());
  const has = (attribute, value) => names.some((list, i) => list.includes(attribute) && String(value) === key[i]);
  const all = await Promise.all(['deny', 'allow', 'subject', 'block'].map((kind) => pageOf(kind)));
  return all.flatMap((page) => page.list).filter(({ kind, entry }) => {
    if (kind === 'block') return entry.rule === rule && same(entry.key, key);
    if (kind === 'subject') return has(entry.attribute, entry.value);
    return Object.entries(bare(entry)).some(([name, value]) => [value].flat().some((one) => has(name, one)));
  }).map((item) => ({ ...item, id: `${item.kind} ${JSON.stringify(bare(item.entry))}`, text: `${item.kind} ${entryText(item)}` }));
}

// matches reports whether an entry of a list holds for a check with these attributes, as far as its values are no ranges or patterns.
const matches = (entry, attributes) => Object.entries(bare(entry)).every(([name, value]) => [value].flat().some((one) => String(one) === attributes[name]));

// denialText says until when checks with these attributes are denied, by which entry.
export async function denialText(attributes) {
  const found = (await pageOf('deny')).list.find(({ entry, asleep }) => !asleep && matches(entry, attributes));
  if (!found) return 'by a list of the document, or by an entry for a range or a pattern';
  return `${untilText(found.entry)}${found.entry.note ? ` (${shown(found.entry.note, 300)})` : ''}`;
}

// tierOf says which tier the subject of a tiered rule has, and where that is written. list has the entries about it.
export function tierOf(spec, key, list) {
  if (!spec?.tiered) return '';
  for (const [i, part] of spec.key.entries()) {
    for (const attribute of [part].flat()) {
      const entry = list.find((e) => e.kind === 'subject' && e.entry.attribute === attribute && e.entry.value === key[i] && e.entry.tier && !e.asleep);
      if (entry) return `Tier ${shown(entry.entry.tier)}, written in an entry.`;
      const written = store.doc?.subjects?.[attribute]?.[key[i]]?.tier;
      if (written) return `Tier ${shown(written)}, written in the document.`;
    }
  }
  return store.doc?.default_tier ? `Tier ${shown(store.doc.default_tier)}, the default.` : 'No tier.';
}

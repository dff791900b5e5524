// Changes. None is made before the node has said what it would do, and a person has agreed to that.
import { byId, make, setClass, setText, shown } from './dom.js';
import { mistakes } from './parts.js';
import { get } from './node.js';
import { store } from './store.js';
import { token } from './token.js';

const dialog = byId('confirm');
const body = byId('confirm-body');
const error = byId('confirm-error');
const yes = byId('confirm-yes');
let current = null; // the change that is asked about

// change asks about a change and makes it.
//   title, button   what it is, and what the button says
//   scope           what a token needs
//   rehearse        asks the node what it would do: elements or texts that say so; with nothing set, there is nothing to agree to
//   reason          a message goes with it, which may be empty
//   make            makes it, with the message, and returns what has happened: a text without who did it
//   done            is called afterwards, before what has happened is said
export async function change(c) {
  current = c;
  setText(byId('confirm-title'), c.title);
  setText(yes, c.button);
  setText(error, '');
  byId('confirm-reason').hidden = !c.reason;
  byId('confirm-message').value = '';
  if (!dialog.open) dialog.showModal();
  await look(c);
}

// look shows what the change would do.
async function look(c) {
  yes.hidden = true;
  byId('confirm-token').hidden = true;
  setText(byId('confirm-by'), '');
  body.replaceChildren(make('p', { class: 'muted' }, 'Asking the node what this would do…'));
  try {
    store.me = await get('v1/whoami');
    const missing = lacks(c.scope);
    if (missing) {
      byId('confirm-token').hidden = !token.text;
      return show(c, make('p', { class: 'bad-text' }, missing));
    }
    const told = await c.rehearse();
    show(c, ...told);
    if (current !== c || told.nothing) return undefined;
    setText(byId('confirm-by'), `It is recorded as done by ${shown(store.me.by)}.`);
    yes.hidden = false;
    (c.reason ? byId('confirm-message') : yes).focus();
  } catch (e) {
    show(c, ...(e.mistakes ? mistakes(e) : [make('p', { class: 'bad-text' }, e.message)]));
  }
  return undefined;
}

function show(c, ...content) {
  if (current === c) body.replaceChildren(...content.filter(Boolean).map((one) => (typeof one === 'string' ? make('p', {}, shown(one, 600)) : one)));
}

// lacks says which scope is missing; nothing if none is.
function lacks(scope) {
  const { scopes, token: name } = store.me;
  if ([scope].flat().some((one) => scopes.includes(one)) || scopes.includes('admin')) return '';
  return `This needs a token with the scope ${[scope].flat().join(' or ')}; ${shown(name)} has ${scopes.join(', ')}.`;
}

yes.addEventListener('click', async () => {
  const c = current;
  yes.disabled = true;
  setText(error, '');
  try {
    const text = await c.make(byId('confirm-message').value.trim());
    dialog.close();
    await c.done?.();
    const by = store.me?.by ? `, by ${shown(store.me.by)}` : '';
    setText(byId('done'), `${text}${by}.`);
    setClass(byId('done'), 'notice good');
    byId('done').hidden = false;
  } catch (e) {
    if (e.status === 412) await look(c);
    setText(error, e.status === 412 ? 'The rules have changed meanwhile. This is what it would do now.' : [e.message, ...(e.mistakes ?? []).map((m) => m.message)].join(' '));
  } finally {
    yes.disabled = false;
  }
});

byId('confirm-message').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !yes.hidden) {
    event.preventDefault();
    yes.click();
  }
});
byId('confirm-no').addEventListener('click', () => dialog.close());
byId('confirm-token').addEventListener('click', () => {
  dialog.close();
  token.ask();
});
dialog.addEventListener('close', () => { current = null; });

// The token, where the node asks for one. It is kept for this tab alone, and sent nowhere but in the header Authorization.
import { byId, setText } from './dom.js';

const place = 'rlnode-token';

// A browser may keep nothing at all: then the token is known until the page is left.
function kept(act) {
  try {
    return act(sessionStorage);
  } catch {
    return null;
  }
}

class Token {
  constructor() {
    this.text = kept((s) => s.getItem(place)) ?? '';
    this.asked = false; // the form is there, and the page waits for it
    this.used = () => {}; // called when there is another token
    byId('token-form').addEventListener('submit', (event) => {
      event.preventDefault();
      this.use(byId('token-text').value.trim());
    });
    byId('token-text').addEventListener('input', () => this.complain(''));
    byId('token-forget').addEventListener('click', () => this.forget());
    this.arrange();
  }

  use(text) {
    if (!/^[!-~]+$/.test(text)) {
      this.complain(text ? 'A token has letters, digits and signs, and no blanks.' : 'Type the token.');
      byId('token-text').focus();
      return;
    }
    this.text = text;
    this.asked = false;
    kept((s) => s.setItem(place, text));
    byId('token-text').value = '';
    this.arrange();
    this.used();
  }

  // refused takes note that the node did not take a token; text is the one that it was sent, empty for none.
  refused(text) {
    if (text !== this.text) return; // there is another one by now
    kept((s) => s.removeItem(place));
    this.text = '';
    const first = !this.asked;
    this.asked = true;
    this.arrange();
    if (text) this.complain('The node does not know this token, or no longer knows it.');
    if (first) byId('token-text').focus();
  }

  // forget leaves nothing of the token, nor of what it showed.
  forget() {
    kept((s) => s.removeItem(place));
    this.text = '';
    location.reload();
  }

  // ask asks for another token than the one that is used.
  ask() {
    this.asked = true;
    this.arrange();
    byId('token-text').focus();
  }

  complain(text) {
    setText(byId('token-error'), text);
    byId('token-text').setAttribute('aria-invalid', text ? 'true' : 'false');
  }

  arrange() {
    byId('token').hidden = !this.asked;
    byId('main').hidden = this.asked;
    byId('token-forget').hidden = !this.text;
    byId('pages').hidden = this.asked;
    byId('reads').hidden = this.asked || this.text !== ''; // a link sends no token
  }
}

export const token = new Token();

//go:build browser

package e2e

import (
	"fmt"
	"testing"
)

// A person without a mouse moves by Tab, and presses Enter.

// keyTo presses Tab until an element has the focus. It gives up after a round through the page.
func (b *browser) keyTo(selector string) {
	b.t.Helper()
	has := fmt.Sprintf(`document.activeElement?.matches(%q) ?? false`, selector)

	// Some elements are in the page before they are shown: a dialog hides its
	// button until the node has said what a change would do.
	b.until(selector+" is shown",
		fmt.Sprintf(`[...document.querySelectorAll(%q)].some(one => !one.disabled && one.checkVisibility())`, selector))

	for range 250 {
		if b.eval(has) == true {
			return
		}
		b.press("Tab")
	}
	b.t.Fatalf("%s can't be reached by keyboard; the focus is at %v", selector,
		b.eval(`document.activeElement?.outerHTML.slice(0, 200)`))
}

// push presses Enter on a button or a link.
func (b *browser) push(selector string) {
	b.t.Helper()
	b.keyTo(selector)
	b.press("Enter")
}

// write replaces a field's content.
func (b *browser) write(selector, text string) {
	b.t.Helper()
	b.keyTo(selector)
	b.page("Input.dispatchKeyEvent",
		map[string]any{"type": "keyDown", "key": "a", "code": "KeyA", "windowsVirtualKeyCode": 65,
			"modifiers": 2, "commands": []string{"selectAll"}},
		nil)
	b.page("Input.dispatchKeyEvent",
		map[string]any{"type": "keyUp", "key": "a", "code": "KeyA", "windowsVirtualKeyCode": 65, "modifiers": 2},
		nil)
	b.page("Input.insertText", map[string]any{"text": text}, nil)
}

// pick moves through the options of a select element until one whose text
// begins with text is chosen.
func (b *browser) pick(selector, text string) {
	b.t.Helper()
	b.keyTo(selector)
	has := fmt.Sprintf(`document.querySelector(%q).selectedOptions[0]?.text.startsWith(%q) ?? false`, selector, text)
	for _, key := range []string{"ArrowDown", "ArrowUp"} {
		for range 20 {
			if b.eval(has) == true {
				return
			}
			b.press(key)
		}
	}
	b.t.Fatalf("%s has no %q: %v", selector, text,
		b.eval(fmt.Sprintf(`document.querySelector(%q).innerText`, selector)))
}

// agrees waits until the page asks about a change, with a text that matches
// pattern, and confirms it. It then waits until the page says what has
// happened, with a text that matches result.
func (s *site) agrees(t *testing.T, pattern, message, result string) {
	t.Helper()
	s.until("it asks, and says "+pattern,
		fmt.Sprintf(`document.getElementById('confirm').open && !document.getElementById('confirm-yes').hidden && new RegExp(%q, 's').test(document.getElementById('confirm').innerText)`, pattern))
	s.until("it says as whom",
		`/recorded as done by admin-token \(127\./.test(document.getElementById('confirm-by').innerText)`)
	s.inspectOnce("dialog")
	if message != "" {
		s.write("#confirm-message", message)
	}
	s.push("#confirm-yes")
	s.until("it says "+result,
		fmt.Sprintf(`!document.getElementById('confirm').open && new RegExp(%q, 's').test(document.getElementById('done').innerText)`, result))
	s.until("it says who did it", `/, by admin-token \(127\./.test(document.getElementById('done').innerText)`)
}

// refuses waits until the page says in the dialog why a change can't be made,
// and closes it by keyboard.
func (s *site) refuses(t *testing.T, pattern string) {
	t.Helper()
	s.until("it refuses, and says "+pattern,
		fmt.Sprintf(`document.getElementById('confirm').open && document.getElementById('confirm-yes').hidden && new RegExp(%q, 's').test(document.getElementById('confirm').innerText)`, pattern))
	s.press("Escape")
	s.until("the dialog is closed", `!document.getElementById('confirm').open`)
}

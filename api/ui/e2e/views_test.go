package e2e

import (
	"fmt"
	"os"
	"testing"
)

// views are the ways in which people view the page.
var views = []struct {
	name          string
	width, height int
	scheme        string
}{
	{"wide-light", 1280, 900, "light"},
	{"wide-dark", 1280, 900, "dark"},
	{"narrow-light", 390, 844, "light"},
	{"narrow-dark", 390, 844, "dark"},
}

// shots takes a picture in each view.
func (s *site) shots(state string) {
	s.browser.t.Helper()
	for _, v := range views {
		s.look(v.width, v.height, v.scheme)
		s.shot(state + "-" + v.name)
	}
	s.look(1280, 900, "light")
}

func fitsAllViews(t *testing.T, s *site) {
	for _, width := range []int{320, 390, 619, 620, 768, 1079, 1080, 1920} {
		s.look(width, 900, "light")
		if have := s.eval(`document.documentElement.scrollWidth`); have != float64(width) {
			t.Errorf("%d pixels wide: the page has %v; beyond are %v", width, have, s.eval(fmt.Sprintf(beyond, width)))
		}
	}
	for _, v := range views {
		s.look(v.width, v.height, v.scheme)
		if list, _ := s.eval(pale).([]any); len(list) > 0 {
			t.Errorf("%s: too little contrast: %v", v.name, list)
		}
		if list, _ := s.eval(clipped).([]any); len(list) > 0 {
			t.Errorf("%s: not all can be read: %v", v.name, list)
		}
	}
	if list, _ := s.eval(nameless).([]any); len(list) > 0 {
		t.Errorf("without a label: %v", list)
	}
	if os.Getenv("SHOTS") != "" { // pictures are worth the two minutes that fill the charts
		for range 6 {
			s.eval(`new Promise(done => setTimeout(done, 18000))`)
		}
	}
	s.shots("load")
	s.calm(t)
}

// beyond lists elements that extend past the right edge.
const beyond = `[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > %d + .5).map(e => e.tagName + '.' + e.className).slice(0, 5)`

// nameless lists fields and buttons that a screen reader could not name.
const nameless = `[...document.querySelectorAll('input, select, textarea, button')].filter(e => !(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label'))).map(e => e.outerHTML.slice(0, 80))`

// clipped lists texts that are wider than their container.
const clipped = `[...document.querySelectorAll('main *:not(.hidden):not(textarea)')].filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1 && !e.matches('input, select') && e.innerText).map(e => e.tagName + ' ' + e.innerText.slice(0, 40))`

// pale lists texts whose contrast with their background is below 4.5, as WCAG 2 computes it.
const pale = `(() => {
	const rgba = (text) => { const n = text.match(/[\d.]+/g).map(Number); return [n[0], n[1], n[2], n[3] ?? 1]; };
	const luminance = ([r, g, b]) => {
		const f = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
		return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
	};
	const behind = (e) => {
		for (; e; e = e.parentElement) {
			const c = rgba(getComputedStyle(e).backgroundColor);
			if (c[3] === 1) return c;
		}
		return [255, 255, 255, 1];
	};
	const list = [];
	for (const e of document.querySelectorAll('body *')) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length || e.closest('option')) continue;
		const a = luminance(rgba(getComputedStyle(e).color)), b = luminance(behind(e));
		const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (contrast < 4.5) list.push(e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 20) + ' ' + contrast.toFixed(2));
	}
	return list;
})()`

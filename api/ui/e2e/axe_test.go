//go:build browser

package e2e

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the library
	"fmt"
	"io"
	"strings"
	"sync"
)

//go:embed testdata/axe.min.js.gz
var axeLibrary []byte

// contrasts lists how each visible text looks: its colour, size and weight, and
// what lies behind it.
const contrasts = `[...new Set([...document.querySelectorAll('body *')].filter(e => e.checkVisibility() &&
	(e.matches('input, textarea, select') || [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))).map(e => {
		const s = getComputedStyle(e), look = [s.color, s.fontSize, s.fontWeight];
		for (let p = e; p; p = p.parentElement) {
			const s = getComputedStyle(p);
			if (s.opacity !== '1' || s.backgroundColor !== 'rgba(0, 0, 0, 0)' || s.backgroundImage !== 'none') look.push(s.opacity + s.backgroundColor + s.backgroundImage);
		}
		return look.join(' ');
	}))]`

var (
	looked sync.Mutex              // guards seen
	seen   = map[string]struct{}{} // contrasts that axe has judged
)

// fresh reports whether the page has contrasts that axe has not judged yet.
func (b *browser) fresh() (fresh bool) {
	b.t.Helper()
	list, _ := b.eval(contrasts).([]any)
	looked.Lock()
	defer looked.Unlock()
	for _, one := range list {
		look := fmt.Sprint(one)
		if _, ok := seen[look]; !ok {
			seen[look], fresh = struct{}{}, true
		}
	}
	return fresh
}

// axe lists what axe-core objects to in the page as it is now. To judge all
// contrasts takes three quarters of its time, and most states have the same
// ones: it judges them if there is a new one.
func (b *browser) axe() []any {
	b.t.Helper()
	if b.eval(`typeof window.axe`) != "object" {
		b.eval(axeSource() + "; true")
	}
	list, ok := b.eval(fmt.Sprintf(`axe.run(document, {resultTypes: ['violations'], rules: {'color-contrast': {enabled: %v}}}).then(r => r.violations.map(v =>
		v.id + ': ' + v.nodes.slice(0, 3).map(n => n.html.slice(0, 120) + ' ' + n.any.map(a => a.message).join()).join(' | ')))`, b.fresh())).([]any)
	if !ok {
		b.t.Fatal("axe-core has not looked at the page")
	}
	return list
}

var axeSource = sync.OnceValue(func() string {
	r, err := gzip.NewReader(bytes.NewReader(axeLibrary))
	if err != nil {
		panic(err)
	}
	source, err := io.ReadAll(r)
	if err != nil {
		panic(err)
	}
	return strings.TrimSuffix(strings.TrimSpace(string(source)), ";")
})

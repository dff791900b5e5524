package e2e

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the library
	"io"
	"strings"
)

//go:embed testdata/axe.min.js.gz
var axeLibrary []byte

// axe lists what axe-core objects to in the page as it is now.
func (b *browser) axe() []any {
	b.t.Helper()
	if b.eval(`typeof window.axe`) != "object" {
		r, err := gzip.NewReader(bytes.NewReader(axeLibrary))
		if err != nil {
			b.t.Fatal(err)
		}
		source, err := io.ReadAll(r)
		if err != nil {
			b.t.Fatal(err)
		}
		b.eval(strings.TrimSuffix(strings.TrimSpace(string(source)), ";") + "; true")
	}
	list, ok := b.eval(`axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v =>
		v.id + ': ' + v.nodes.slice(0, 3).map(n => n.html.slice(0, 120) + ' ' + n.any.map(a => a.message).join()).join(' | ')))`).([]any)
	if !ok {
		b.t.Fatal("axe-core has not looked at the page")
	}
	return list
}

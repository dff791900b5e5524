package rules

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// checkRoundTrip checks that doc, once written, reads back as the same rules.
func checkRoundTrip(t failer, doc *Document) {
	t.Helper()
	want := compileBare(t, doc)
	rendered := *doc
	rendered.source = ""
	for name, write := range map[string]func() []byte{"YAML": doc.YAML, "JSON": doc.JSON,
		"rendered YAML": rendered.YAML} {
		text := write()
		again, err := Parse(text)
		if err != nil {
			t.Fatalf("%s does not parse: %v\n%s", name, err, text)
		}
		if have := compileBare(t, again); !reflect.DeepEqual(have, want) {
			t.Fatalf("%s means something else:\n%s", name, text)
		}
	}
	if text := doc.JSON(); !json.Valid(text) {
		t.Fatalf("not JSON: %s", text)
	}
}

func compileBare(t failer, doc *Document) *Set {
	t.Helper()
	s, err := Compile(doc, 7)
	if err != nil {
		t.Fatalf("Compile: %v", err)
	}
	s.Document = nil
	return s
}

func TestRoundTrip(t *testing.T) {
	for name, src := range map[string][]byte{"contract": readContract(t), "starter": StarterSource()} {
		t.Run(name, func(t *testing.T) { checkRoundTrip(t, mustParse(t, string(src))) })
	}
}

func TestDocument_YAML_keepsText(t *testing.T) {
	src := readContract(t)
	if have := mustParse(t, string(src)).YAML(); !bytes.Equal(have, src) {
		t.Errorf("have:\n%s", have)
	}
	have := mustParse(t, `{"default": "deny"}`).YAML()
	if want := "version: 1\ndefault: deny\n"; string(have) != want {
		t.Errorf("from JSON: have %q, want %q", have, want)
	}
}

func TestStarter(t *testing.T) {
	doc := Starter()
	if len(doc.Deny)+len(doc.Allow) > 0 {
		t.Error("the starter rules have lists")
	}
	if w := doc.Warnings(); len(w) > 0 {
		t.Errorf("warnings: %v", w)
	}
	for _, r := range doc.Rules {
		if len(r.Key) == 1 && r.Key[0][0] == "ip" {
			return
		}
	}
	t.Error("no starter rule is keyed by ip")
}

// failer is the interface that tests and property tests share.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

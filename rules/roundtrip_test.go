package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// checkRoundTrip checks that doc, once written, reads back as the same rules.
func checkRoundTrip(t failer, doc *document.Document) {
	t.Helper()
	want := compileBare(t, doc)
	rendered, err := document.Parse(doc.JSON())
	if err != nil {
		t.Fatalf("JSON does not parse: %v\n%s", err, doc.JSON())
	}
	for name, write := range map[string]func() []byte{"YAML": doc.YAML, "JSON": doc.JSON,
		"rendered YAML": rendered.YAML} {
		text := write()
		again, err := document.Parse(text)
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

func compileBare(t failer, doc *document.Document) *Set {
	t.Helper()
	s, err := Compile(doc, 7)
	if err != nil {
		t.Fatalf("Compile: %v", err)
	}
	s.Document = nil
	return s
}

// failer is the interface that tests and property tests share.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func TestRoundTrip(t *testing.T) {
	for name, src := range map[string][]byte{"contract": readContract(t), "starter": document.StarterSource()} {
		t.Run(name, func(t *testing.T) { checkRoundTrip(t, mustParse(t, string(src))) })
	}
}

func TestEnvoyRoundTrip(t *testing.T) {
	doc := mustParse(t, envoyDocument)
	checkRoundTrip(t, doc)
	text := doc.JSON()
	for _, part := range []string{`"metadata":{"a":[1,null,{"b":true}]}`, `"requests_per_unit":0`,
		`"unit":"day"`, `"replaces":[{"name":"many"},{"name":"most"}]`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%s is not in %s", part, text)
		}
	}
	changed, err := doc.Apply(document.Change{Part: document.RulePart, Name: "r",
		Body: []byte("{key: [], limits: [{limit: 1, per: 1m}]}")})
	expect.NoError(t, err)
	checkRoundTrip(t, changed)
	if changed.FeatureLevel() != 2 || len(changed.Envoy) != 2 {
		t.Error("a change of a rule loses the section")
	}
}

func TestDocument_roundTripsRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc, err := document.Parse([]byte(drawDocument(t)))
		expect.NoError(t, err)
		checkRoundTrip(t, doc)
	})
}

// Writing pieces one by one, in any order, yields the same rules as parsing the whole document.
func TestDocument_Apply_agreesWithParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc, err := document.Parse([]byte("tiers: {t0: {limits: [{limit: 1, per: 1m}]}}\nrules: [{name: r0, key: [ip, t], limits: [{limit: 1, per: 1m}]}]"))
		expect.NoError(t, err)
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			next, err := doc.Apply(drawChange(t))
			if err != nil {
				var errs document.Errors
				if !errors.As(err, &errs) && !errors.Is(err, document.ErrNotFound) {
					t.Fatalf("have %v", err)
				}
				continue
			}
			doc = next
			checkRoundTrip(t, doc)
		}
		text := doc.JSON()
		again, err := document.Parse(text)
		expect.NoError(t, err)
		if !reflect.DeepEqual(compileBare(t, again), compileBare(t, doc)) {
			t.Fatalf("%s means something else when parsed as a whole", text)
		}
	})
}

func drawChange(t *rapid.T) document.Change {
	limits := fmt.Sprintf("[{limit: %d, per: 1m}]", rapid.IntRange(0, 5).Draw(t, "limit"))
	n := rapid.IntRange(0, 3).Draw(t, "name")
	c := document.Change{Part: document.Part(rapid.IntRange(1, 3).Draw(t, "part")),
		Delete: rapid.IntRange(0, 3).Draw(t, "delete") == 0}
	switch c.Part {
	case document.RulePart:
		c.Name = fmt.Sprintf("r%d", n)
		c.Body = []byte(rapid.SampledFrom([]string{"{key: [ip], limits: " + limits + "}",
			"{key: [t], tiered: true}", "{key: [ip, t], limits: " + limits + "}"}).Draw(t, "body"))
	case document.TierPart:
		c.Name, c.Body = fmt.Sprintf("t%d", n), []byte("{limits: "+limits+"}")
	case document.ListPart:
		c.Name = rapid.SampledFrom([]string{"allow", "deny"}).Draw(t, "list")
		c.Body = []byte("[" + drawMatch(t) + "]")
	}
	return c
}

func FuzzParse(f *testing.F) {
	f.Add(readContract(f))
	f.Add(document.StarterSource())
	f.Add([]byte(one))
	f.Add([]byte(envoyDocument))
	f.Add([]byte("a: &a [x]\nb: *a\n? c\n"))
	f.Add([]byte("lists: {deny: [{ip: \"::1\"}, {a: 'b''c'}]}"))
	f.Add([]byte("defaults: {lease: {threshold: 0.9, ttl: auto}, tz: UTC}\ndefault: >-\n  deny\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		doc, err := document.Parse(src)
		if err != nil {
			var errs document.Errors
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("not Errors: %v", err)
			}
			return
		}
		checkRoundTrip(t, doc)
	})
}

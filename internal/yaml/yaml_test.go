package yaml

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParse_scalars(t *testing.T) {
	kinds := map[Kind][]string{
		Null:  {"", "~", "null", "Null"},
		Bool:  {"true", "False"},
		Int:   {"0", "-1", "+7", "007", "0x1F", "0o17", "99999999999999999999999"},
		Float: {"1.5", ".5", "1.", "-1e3", "1E-3", ".inf", "-.Inf", ".nan"},
		String: {"a", "yes", "on", "1_000", "0x", "0o8", "1.2.3.4", "+", ".", "1e", "e3", "12:30",
			"'1'", `"true"`, "!!str 1", "2001:db8::1", "a#b"},
	}
	for want, texts := range kinds {
		for _, text := range texts {
			n, err := Parse("k: " + text)
			if err != nil {
				t.Errorf("%q: %v", text, err)
			} else if have := n.Items[1].Kind; have != want {
				t.Errorf("%q: have %s, want %s", text, have, want)
			}
		}
	}
}

func TestParse_refuses(t *testing.T) {
	tests := map[string]string{
		"tag on a map":  "a: !x {b: c}",
		"tag on text":   "a: !!int b",
		"binary":        "a: !!binary aGk=",
		"list as key":   "{[a]: b}",
		"alias as key":  "a: &a b\n*a : c",
		"two documents": "a\n---\nb",
		"deep":          strings.Repeat("[", MaxDepth+2) + strings.Repeat("]", MaxDepth+2),
		"very deep":     strings.Repeat("[", 100_000),
		"NUL":           "a: \x00",
		"half a rune":   "a: \xc3",
		"surrogate":     `a: "\ud800"`,
		"merge":         "a: {<<: {b: c}}",
		"cycle":         "&a [*a]",
		"commas":        "[" + strings.Repeat("1,", maxItems+1) + "]",
		"brackets":      "[" + strings.Repeat("[]", maxItems+1) + "]",
		"lines":         strings.Repeat("- \n", maxItems+1),
		"large aliases": "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a,", 20) + "]",
	}
	for name, src := range tests {
		_, err := Parse(src)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || syntax.Line < 1 || syntax.Column < 1 || syntax.Message == "" {
			t.Errorf("%s: have %v, want a SyntaxError with its place", name, err)
		}
	}
}

func TestParse_placesInsideTheText(t *testing.T) {
	tests := []struct{ src, want string }{
		{"rules: [", "1:9"}, {"rules: [\n", "1:9"}, {"a: 1\nb: {c: [\n\n", "2:9"},
		{"a: [1,\nb: c: d\n", "2:5"}, {"a: b: c", "1:5"},
	}
	for _, tt := range tests {
		if _, err := Parse(tt.src); err == nil || !strings.HasPrefix(err.Error(), tt.want+": ") {
			t.Errorf("%q: have %v, want it at %s", tt.src, err, tt.want)
		}
	}
}

// A string that is written as text is read back as the same text, by this
// package and by any JSON parser.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "a", "1", "0x1", "1_0", "yes", "~", "null", "a: b", "a #b", " a",
		"a ", "-", "- a", "\n", "\t\x00\x7f", "\u0085\u2028\ufeff", "é", "🙂", `"\`, "'", "<<",
		"1e3", "*", "/a*", "2001:db8::", "---", "..."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) || len(s) > 1000 {
			t.Skip()
		}
		n := NewMap()
		n.Set("k"+s, NewList(Text(s), NewMap().OnOneLine()))
		n.Items[1].Items[1].Set(s+"k", Text(s))
		for name, text := range map[string][]byte{"YAML": n.AppendYAML(nil), "JSON": n.AppendJSON(nil)} {
			again, err := Parse(string(text))
			if err != nil {
				t.Fatalf("%s %q: %v", name, text, err)
			}
			list := again.Items[1].Items
			if again.Items[0].Text != "k"+s || list[0].Text != s || list[0].Kind != String ||
				list[1].Items[0].Text != s+"k" || list[1].Items[1].Text != s {
				t.Fatalf("%s %q is read as something else", name, text)
			}
		}
		var have map[string][]any
		if err := json.Unmarshal(n.AppendJSON(nil), &have); err != nil || have["k"+s][0] != s {
			t.Fatalf("JSON %q: have %v, %v", n.AppendJSON(nil), have, err)
		}
	})
}

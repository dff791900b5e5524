package document

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

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

func TestTextThatDoesNotFit(t *testing.T) {
	fat := &Document{Profiles: []*ProfileSpec{{Name: "wide",
		Sources: []ProfileSource{{Attribute: "a", Source: "header:" + strings.Repeat("x", MaxDocument)}}}}}
	var invalid Errors
	if _, err := fat.Text(); !errors.As(err, &invalid) {
		t.Errorf("have %v", err)
	}
}

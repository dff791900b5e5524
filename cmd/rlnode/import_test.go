package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// TestImportEnvoy: files of the reference server become one rules file.
// Differences and mistakes are reported with their place.
func TestImportEnvoy(t *testing.T) {
	t.Parallel()
	const shop, changed = "../../rules/document/testdata/envoy/shop.yaml", "../../rules/document/testdata/envoy/changed.yaml"
	mistaken, more := file(t, "mistaken.yaml", "domain: d\ndescriptors: [{key: ''}]\n"), file(t,
		"more.yaml", "domain: shop\ndescriptors: [{key: more}]\n")
	out := filepath.Join(t.TempDir(), "rules.yaml")
	code, stdout, stderr := tool(t, "", "import", "envoy", shop, changed, "-o", out)
	if code != 0 || stdout != "wrote 2 domain(s) from 2 file(s) to "+out+"\n" {
		t.Errorf("have %d, %q", code, stdout)
	}
	for _, want := range []string{changed + ":5:22: note: descriptors[0].share_threshold: left out",
		"rlnode doesn't count refused hits", "to all of its descriptors or to none",
		"Comments are not kept"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("have\n%swant it to have %q", stderr, want)
		}
	}
	text, err := os.ReadFile(out)
	expect.NoError(t, err)
	doc, err := document.Parse(text)
	if err != nil || len(doc.Envoy) != 2 || doc.Envoy[0].Domain != "shop" || doc.Envoy[1].Domain != "changed" {
		t.Errorf("have %v\n%s", err, text)
	}
	for _, test := range []struct {
		args, stdin string
		code        int
		stdout      string // part of it; empty for none
		stderr      string
	}{
		{shop + " " + more, "", 1, "",
			more + `: the domain "shop" is also in ` + shop + "; --merge-domains merges them"},
		{"--merge-domains " + shop + " " + more, "", 0, "      - key: more\n", "Differences from"},
		{"--merge-domains " + shop + " " + shop, "", 1, "",
			`the files together: envoy[0].descriptors[9]: "remote_address_192.0.2.66" is a duplicate of descriptors[0]`},
		{mistaken + " " + shop, "", 1, "", mistaken + ":2:21: descriptors[0].key: this can't be empty"},
		{"-", "domain: d", 0, "version: 1\nenvoy:\n  - domain: d\n", "Differences from"},
		{"-", "domain: [", 1, "", "<stdin>:1:"},
		{"nosuch.yaml", "", 1, "", "no such file"},
		{"", "", 2, "", "<files>"},
	} {
		code, stdout, stderr := tool(t, test.stdin,
			append([]string{"import", "envoy"}, strings.Fields(test.args)...)...)
		if code != test.code || !strings.Contains(stdout, test.stdout) || test.stdout == "" &&
			stdout != "" || !strings.Contains(stderr, test.stderr) {
			t.Errorf("%s: have %d, %q, %q, want %+v", test.args, code, stdout, stderr, test)
		}
	}
}

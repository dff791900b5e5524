package document

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

func readEnvoyFile(t *testing.T, name string) (*EnvoySpec, []Error) {
	t.Helper()
	src, err := os.ReadFile("testdata/envoy/" + name)
	expect.NoError(t, err)
	s, changed, err := ReadEnvoy(src)
	expect.NoError(t, err)
	return s, changed
}

// TestReadEnvoyChanges: what a document refuses is left out and named, with its place in the file.
func TestReadEnvoyChanges(t *testing.T) {
	s, changed := readEnvoyFile(t, "changed.yaml")
	have := make([]string, len(changed))
	for i, c := range changed {
		have[i] = c.Error()
	}
	want := []string{
		"5:22: descriptors[0].share_threshold: left out, so more is allowed: each value that a wildcard matches",
		"6:22: descriptors[0].value_to_metric: left out: values from requests",
		"12:26: descriptors[0].descriptors[0].detailed_metric: metrics are per descriptor as written",
		"14:21: descriptors[0].descriptors[0].rate_limit: requests_per_unit is missing: everything is refused, as by the reference server",
	}
	if !slices.EqualFunc(have, want, strings.HasPrefix) {
		t.Errorf("have\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	text := `version: 1
envoy:
  - domain: changed
    descriptors:
      - key: file
        value: files/*
        rate_limit: {unit: minute, requests_per_unit: 5}
        descriptors:
          - key: user
            rate_limit: {unit: minute, requests_per_unit: 0}
            detailed_metric: true
      - key: nothing
`
	doc, err := EnvoyDocument([]*EnvoySpec{s})
	expect.NoError(t, err)
	if have := doc.YAML(); string(have) != text {
		t.Errorf("have\n%s\nwant\n%s", have, text)
	}
	// Merged files may have the same descriptor; that mistake has no position.
	other, _ := readEnvoyFile(t, "changed.yaml")
	s.Merge(other)
	_, err = EnvoyDocument([]*EnvoySpec{s})
	checkErrors(t, err,
		[]string{`0:0 envoy[0].descriptors[2]|"file_files/*" is a duplicate of descriptors[`,
			`0:0 envoy[0].descriptors[3]|"nothing" is a duplicate of descriptors[`})
}

func TestReadEnvoyMistakes(t *testing.T) {
	for _, tt := range []struct {
		src  string
		want []string
	}{
		{"", []string{"1:1 |expected a mapping, not nothing"}},
		{"- domain: d", []string{"1:1 |expected a mapping, not a list"}},
		{"descriptors: []", []string{"1:1 |domain is missing"}},
		{"domain: ''", []string{"1:9 domain|can't be empty"}},
		{"version: 1\nenvoy: []", []string{"1:1 |this is a rules file"}},
		{"domain: d\ndescriptors: [{key: a, rate_limit: {unit: x, requests_per_unit: 1}}, {key: a}]",
			[]string{`2:43 descriptors[0].rate_limit.unit|"x" is not one of`,
				`2:70 descriptors[1]|"a" is a duplicate of descriptors[0]`}},
		{"domain: d\ndescriptors: {key: a}", []string{"2:14 descriptors|expected a list"}},
		{"domain: [", []string{"1:10 |did not find expected"}},
	} {
		_, _, err := ReadEnvoy([]byte(tt.src))
		checkErrors(t, err, tt.want)
	}
}

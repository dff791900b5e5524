package document

import (
	"strings"
	"testing"
)

// Two notations of an address in a document are a duplicate subject.
func TestParse_addressTwice(t *testing.T) {
	_, err := Parse([]byte(`
tiers: {big: {limits: [{limit: 1000, per: 1m}]}}
subjects: {ip: {"198.51.100.7:443": {tier: big}, "198.51.100.7": {tier: big}}}
rules: [{name: r, key: [ip], tiered: true}]
`))
	if err == nil || !strings.Contains(err.Error(), "duplicate address") {
		t.Errorf("have %v", err)
	}
}

package rules

import (
	"os"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// TestReadEnvoy: a configuration of the reference server becomes a document,
// and each of its descriptors has its limit there.
func TestReadEnvoy(t *testing.T) {
	src, err := os.ReadFile("document/testdata/envoy/shop.yaml")
	expect.NoError(t, err)
	s, changed, err := document.ReadEnvoy(src)
	expect.NoError(t, err)
	if len(changed) > 0 {
		t.Errorf("have changes %v", changed)
	}
	doc, err := document.EnvoyDocument([]*document.EnvoySpec{s})
	expect.NoError(t, err)
	set, err := Compile(doc, 1)
	expect.NoError(t, err)
	for _, tt := range []struct {
		descriptor, path string
		requests         uint32
		unit             string
	}{
		{"remote_address=192.0.2.66", "shop.remote_address_192.0.2.66", 0, "second"},
		{"remote_address=192.0.2.6", "shop.remote_address", 20, "second"},
		{"path=/cart", "shop.path_/cart", 600, "minute"},
		{"path=/items/1/photos/2.json", "shop.path_/items/*/photos/*", 30, "minute"},
		{"path=/items/1.json", "shop.path_*.json", 60, "minute"},
		{"path=/x plan=gold", "shop.path.plan_gold", 0, ""},
		{"path=/x plan=trial", "shop.path.plan_trial", 700, "week"},
		{"path=/x plan=free", "shop.path.plan", 100, "hour"},
		{"path=/x plan=free user=u", "shop.path.plan.user", 500, "day"},
		{"tokens=1234", "shop.tokens_1234", 1_000_000, "month"},
		{"tokens=true", "shop.tokens_true", 1<<32 - 1, "year"},
	} {
		n := set.EnvoyDomain("shop").Match(envoyEntries(tt.descriptor))
		if n == nil || n.Path != tt.path || n.Requests != tt.requests || n.Unit != tt.unit ||
			n.Unlimited != (tt.unit == "") ||
			n.Quota != strings.Contains(tt.path, "tokens") || n.Shadow != strings.HasSuffix(tt.path, "trial") {
			t.Errorf("%s: have %+v, want %+v", tt.descriptor, n, tt)
		}
	}
	for _, none := range []string{"path=/x", "path=/x plan=gold user=u", "internal=health", "tokens=12"} {
		if n := set.EnvoyDomain("shop").Match(envoyEntries(none)); n != nil {
			t.Errorf("%s: have %+v", none, n)
		}
	}
	if text := doc.JSON(); !strings.Contains(string(text),
		`"metadata":{"budget":{"name":"first","weights":[1,2.5,null,true]}}`) {
		t.Errorf("the metadata is lost: %s", text)
	}
}

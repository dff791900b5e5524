package apitest_test

import (
	"reflect"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

func TestParseItems(t *testing.T) {
	have, err := apitest.ParseItems(`"a\"\\ %C3";q=100;w=-6;qu="tokens";pk=:YQ==:, "b"`)
	want := []apitest.Item{{`a"\ %C3`,
		map[string]any{"q": int64(100), "w": int64(-6), "qu": "tokens", "pk": []byte("a")}}, {"b",
		map[string]any{}}}
	if err != nil || !reflect.DeepEqual(have, want) {
		t.Errorf("have %v, %v", have, err)
	}
	for _, s := range []string{
		"", `""`, `a`, `"a`, `"a";`, `"a";q`, `"a";q=`, `"a";Q=1`, `"a"; q=1`, `"a";q=1 `, `"a",`,
		`"a", `, `"a","b"`, `"a";q=1.0`, `"a";q=1000000000000000`,
		`"a\b"`, "\"\xff\"", "\"a\x00\"", `"a";q=1;q=2`, `1`, `"a";pk=:YQ=:`,
	} {
		if have, err := apitest.ParseItems(s); err == nil {
			t.Errorf("%q: have %v", s, have)
		}
	}
}

package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// readExample reads an example's YAML into v, which must have all keys that occur.
func readExample(t *testing.T, name string, v any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(proxyExamples, name))
	expect.NoError(t, err)
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// The rules that all examples share use only a fingerprint of the caller's key.
func TestProxyExamplesRules(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(proxyExamples, "rules.yaml"))
	expect.NoError(t, err)
	doc, err := document.Parse(src)
	expect.NoError(t, err)
	if w := doc.Warnings(); len(doc.Profiles) != 1 || doc.Profiles[0].Name != "web" || len(w) > 0 {
		t.Errorf("profiles: have %d, warnings %v", len(doc.Profiles), w)
	}
	for _, s := range doc.Profiles[0].Sources {
		if s.Attribute == "api_key" && s.Source != "fingerprint:X-Api-Key" {
			t.Errorf("the key is read from %s", s.Source)
		}
	}
}

// Traefik is not run here. Its configuration asks about every request, with the
// headers that Traefik sets itself and the key. Traefik can't let a request
// pass without an answer.
func TestTraefikExample(t *testing.T) {
	var entries struct {
		EntryPoints map[string]struct{ Address string } `yaml:"entryPoints"`
		Providers   struct{ File struct{ Filename string } }
	}
	readExample(t, "traefik/traefik.yaml", &entries)
	for name, e := range entries.EntryPoints {
		if a, err := netip.ParseAddrPort(e.Address); err != nil || !a.Addr().IsLoopback() {
			t.Errorf("%s listens on %s", name, e.Address)
		}
	}
	var sections struct{ HTTP map[string]yaml.Node }
	readExample(t, "traefik/rlnode.yaml", &sections)
	var routers map[string]struct {
		EntryPoints   []string `yaml:"entryPoints"`
		Middlewares   []string
		Rule, Service string
	}
	var middlewares map[string]struct {
		ForwardAuth struct {
			Address            string
			TrustForwardHeader *bool    `yaml:"trustForwardHeader"`
			AuthRequestHeaders []string `yaml:"authRequestHeaders"`
		} `yaml:"forwardAuth"`
	}
	for name, into := range map[string]any{"routers": &routers, "middlewares": &middlewares} {
		n := sections.HTTP[name]
		if err := n.Load(into, yaml.WithKnownFields()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	app, ask := routers["app"], middlewares["rlnode"].ForwardAuth
	if app.Rule != "PathPrefix(`/`)" || !reflect.DeepEqual(app.Middlewares, []string{"rlnode"}) ||
		!reflect.DeepEqual(app.EntryPoints, []string{"web"}) {
		t.Errorf("the application's router: %+v", app)
	}
	if ask.Address != "http://"+entries.EntryPoints["rlnode"].Address+"/v1/auth/web" ||
		ask.TrustForwardHeader == nil || *ask.TrustForwardHeader ||
		!reflect.DeepEqual(ask.AuthRequestHeaders, []string{"X-Api-Key"}) {
		t.Errorf("the request to rlnode: %+v", ask)
	}
}

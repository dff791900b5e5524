package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/rlnode/rlnode/rules"
)

// readExample reads an example's YAML into v, which must have all keys that occur.
func readExample(t *testing.T, name string, v any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(proxyExamples, name))
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// The rules that all examples share use only a fingerprint of the caller's key.
func TestProxyExamplesRules(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(proxyExamples, "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := rules.Parse(src)
	if err != nil {
		t.Fatal(err)
	}
	if w := doc.Warnings(); len(doc.Profiles) != 1 || doc.Profiles[0].Name != "web" || len(w) > 0 {
		t.Errorf("profiles: have %d, warnings %v", len(doc.Profiles), w)
	}
	for _, s := range doc.Profiles[0].Sources {
		if s.Attribute == "api_key" && s.Source != "fingerprint:X-Api-Key" {
			t.Errorf("the key is read from %s", s.Source)
		}
	}
}

type envoyFilter struct {
	Name   string
	Config yaml.Node `yaml:"typed_config"`
}

// extAuthz has the fields of Envoy's ExtAuthz that the example sets.
type extAuthz struct {
	Type             string                                 `yaml:"@type"`
	Version          string                                 `yaml:"transport_api_version"`
	FailureModeAllow bool                                   `yaml:"failure_mode_allow"`
	StatusOnError    struct{ Code string }                  `yaml:"status_on_error"`
	Allowed          struct{ Patterns []map[string]string } `yaml:"allowed_headers"`
	Service          struct {
		Server struct{ URI, Cluster, Timeout string } `yaml:"server_uri"`
		Prefix string                                 `yaml:"path_prefix"`
		Answer struct {
			Refused struct{ Patterns []map[string]string } `yaml:"allowed_client_headers"`
			Allowed struct{ Patterns []map[string]string } `yaml:"allowed_client_headers_on_success"`
		} `yaml:"authorization_response"`
	} `yaml:"http_service"`
}

// envoyManager has the fields of Envoy's HttpConnectionManager that the example sets.
type envoyManager struct {
	Type             string        `yaml:"@type"`
	Stat             string        `yaml:"stat_prefix"`
	UseRemoteAddress bool          `yaml:"use_remote_address"`
	NormalizePath    bool          `yaml:"normalize_path"`
	MergeSlashes     bool          `yaml:"merge_slashes"`
	Filters          []envoyFilter `yaml:"http_filters"`
	Routes           struct {
		Hosts []struct {
			Name    string
			Domains []string
			Routes  []struct {
				Match     struct{ Path, Prefix string }
				Route     struct{ Cluster string }
				PerFilter map[string]struct {
					Type     string `yaml:"@type"`
					Disabled bool
				} `yaml:"typed_per_filter_config"`
			}
		} `yaml:"virtual_hosts"`
	} `yaml:"route_config"`
}

// Envoy is not run here. Its configuration asks about every request, with the headers that Envoy sets itself and the
// key. Without an answer it lets all but /login pass.
func TestEnvoyExample(t *testing.T) {
	var all struct {
		Resources struct {
			Listeners []struct {
				Name    string
				Address yaml.Node
				Chains  []struct{ Filters []envoyFilter } `yaml:"filter_chains"`
			}
			Clusters yaml.Node
		} `yaml:"static_resources"`
	}
	readExample(t, "envoy/envoy.yaml", &all)
	var manager envoyManager
	decode := func(n *yaml.Node, v any) {
		t.Helper()
		if err := n.Load(v, yaml.WithKnownFields()); err != nil {
			t.Fatal(err)
		}
	}
	decode(&all.Resources.Listeners[0].Chains[0].Filters[0].Config, &manager)
	if !manager.UseRemoteAddress || !manager.NormalizePath || !manager.MergeSlashes {
		t.Error("Envoy trusts the caller's address, or does not normalise paths")
	}
	order := []string{}
	asks := map[string]extAuthz{}
	for i := range manager.Filters {
		f := &manager.Filters[i]
		order = append(order, f.Name)
		if f.Name == "rlnode" || f.Name == "rlnode_or_pass" {
			var a extAuthz
			decode(&f.Config, &a)
			asks[f.Name] = a
		}
	}
	if want := []string{"target", "rlnode_or_pass", "rlnode", "envoy.filters.http.router"}; !reflect.DeepEqual(order, want) {
		t.Errorf("filters: have %v, want %v", order, want)
	}
	headers := []map[string]string{{"exact": "x-forwarded-for"}, {"exact": "x-forwarded-uri"}, {"exact": "x-forwarded-method"}, {"exact": "x-api-key"}}
	for name, a := range asks {
		if a.FailureModeAllow != (name == "rlnode_or_pass") || a.StatusOnError.Code != "ServiceUnavailable" || a.Service.Prefix != "/v1/auth/web" || a.Service.Server.Timeout != "0.2s" {
			t.Errorf("%s: have %+v", name, a)
		}
		if !reflect.DeepEqual(a.Allowed.Patterns, headers) {
			t.Errorf("%s: forwards the caller's headers %v", name, a.Allowed.Patterns)
		}
	}
	off := map[string]string{}
	for _, r := range manager.Routes.Hosts[0].Routes {
		for name, f := range r.PerFilter {
			if f.Disabled {
				off[r.Match.Path+r.Match.Prefix] += name
			}
		}
	}
	if want := map[string]string{"/login": "rlnode_or_pass", "/": "rlnode"}; !reflect.DeepEqual(off, want) {
		t.Errorf("paths without a check: have %v, want %v", off, want)
	}
}

// Traefik is not run here. Its configuration asks about every request, with the headers that Traefik sets itself and
// the key. Traefik can't let a request pass without an answer.
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
	if app.Rule != "PathPrefix(`/`)" || !reflect.DeepEqual(app.Middlewares, []string{"rlnode"}) || !reflect.DeepEqual(app.EntryPoints, []string{"web"}) {
		t.Errorf("the application's router: %+v", app)
	}
	if ask.Address != "http://"+entries.EntryPoints["rlnode"].Address+"/v1/auth/web" || ask.TrustForwardHeader == nil || *ask.TrustForwardHeader ||
		!reflect.DeepEqual(ask.AuthRequestHeaders, []string{"X-Api-Key"}) {
		t.Errorf("the request to rlnode: %+v", ask)
	}
}

package rules

import (
	"fmt"

	"github.com/rlnode/rlnode/internal/yaml"
)

// Warnings lists what d says that this version does not act upon, so that nothing is ignored in silence. Places
// are given for a document that is as it was parsed.
func (d *Document) Warnings() []Error {
	var w collector
	d.Defaults.warn(&w, "defaults", func(key string) yaml.Pos { return d.at["defaults."+key] })
	for i, r := range d.Rules {
		path := fmt.Sprintf("rules[%d]", i)
		if r.Scope == "global" {
			w.add(r.place("scope"), path+".scope", "scope: global takes effect with a cluster")
		}
		if r.has("regions") {
			w.add(r.place("regions"), path+".regions", "regions take effect with a cluster")
		}
		r.warn(&w, path, r.place)
	}
	if d.source == "" {
		for i := range w.errs {
			w.errs[i].Line, w.errs[i].Column = 0, 0
		}
	}
	w.sort()
	return w.errs
}

// warn is for what defaults and rules share.
func (s *Settings) warn(w *collector, path string, place func(key string) yaml.Pos) {
	if s.Consistency == "local" {
		w.add(place("consistency"), path+".consistency", "consistency: local takes effect with a cluster")
	}
}

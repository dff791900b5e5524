//go:build browser

package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// pictures is where the pictures of the docs are written: go test -tags browser
// ./api/ui/e2e -args -pictures ../../../docs
var pictures = flag.String("pictures", "", "write the pictures of the docs into this `folder`")

// ofTheDocs are the pictures that the docs have, by state and view.
var ofTheDocs = map[string]string{
	"load-overview-wide-light": "dashboard", "load-overview-narrow-light": "dashboard-narrow",
	"alone-overview-wide-dark": "dashboard-alone",
}

// views are the ways in which people view the page.
var views = []struct {
	name          string
	width, height int
	scheme        string
}{
	{"wide-light", 1440, 900, "light"},
	{"wide-dark", 1440, 900, "dark"},
	{"narrow-light", 390, 844, "light"},
	{"narrow-dark", 390, 844, "dark"},
}

// inspect looks at the page in two views that differ in width and colours, in
// turn the first and last or the two between, or in all of them if they are to
// be saved: everybody can use it, it fits, and all can be read.
func (b *browser) inspect(state string) {
	b.t.Helper()
	b.inspected++
	for i, v := range views {
		if within := i == 1 || i == 2; within != (b.inspected%2 == 0) && *pictures == "" && os.Getenv("SHOTS") == "" {
			continue
		}
		b.look(v.width, v.height, v.scheme)
		for _, line := range b.axe() {
			b.t.Errorf("%s, %s: %v", state, v.name, line)
		}
		if have := b.eval(`document.documentElement.scrollWidth`); have != float64(v.width) {
			b.t.Errorf("%s, %s: the page is %v wide; beyond are %v", state, v.name, have,
				b.eval(fmt.Sprintf(beyond, v.width)))
		}
		if list, _ := b.eval(clipped).([]any); len(list) > 0 {
			b.t.Errorf("%s, %s: not all can be read: %v", state, v.name, list)
		}
		b.shot(state + "-" + v.name)
		if name := ofTheDocs[state+"-"+v.name]; name != "" && *pictures != "" {
			clip := map[string]any{"x": 0, "y": 0, "width": v.width, "height": 1200, "scale": 0.8}
			b.save(filepath.Join(*pictures, name+".webp"),
				map[string]any{"format": "webp", "quality": 30, "clip": clip})
		}
	}
	b.look(1440, 900, "light")
}

// pages are the addresses of all pages.
var pages = []string{"overview", "rules", "rules/login", "subjects", "subjects/login/203.0.113.1",
	"document", "lists", "bills", "nodes", "regions"}

// inspectPages inspects each page in the state in which the cluster is, and
// returns to the first one.
func (s *site) inspectPages(state string) {
	s.t.Helper()
	for _, page := range pages {
		s.visit("#/" + page)
		s.until("it has heard something",
			`document.getElementById('facts').innerText !== '' || document.getElementById('notices').innerText !== ''`)
		s.eval(`new Promise(done => setTimeout(done, 300))`)
		s.inspect(state + "-" + strings.NewReplacer("/", "-", ".", "-").Replace(page))
	}
	s.visit("#/overview")
}

// inspectOnce inspects a state that a test meets often only when it meets it first.
func (s *site) inspectOnce(state string) {
	s.t.Helper()
	if !s.met[state] {
		s.met[state] = true
		s.inspect(state)
	}
}

func fitsAllViews(t *testing.T, s *site) {
	for _, page := range pages {
		s.visit("#/" + page)
		s.fits(t)
	}
	s.visit("#/overview")
	if *pictures != "" { // pictures are worth the minutes that fill the charts
		for range 8 {
			s.eval(`new Promise(done => setTimeout(done, 18000))`)
		}
	}
	s.inspectPages("load")
	s.calm(t)
}

// fits looks at the page in many widths.
func (s *site) fits(t *testing.T) {
	t.Helper()
	for _, width := range []int{320, 390, 619, 620, 768, 1079, 1080, 1920} {
		s.look(width, 900, "light")
		if have := s.eval(`document.documentElement.scrollWidth`); have != float64(width) {
			t.Errorf("%d pixels wide: the page has %v; beyond are %v", width, have, s.eval(fmt.Sprintf(beyond, width)))
		}
	}
	s.look(1440, 900, "light")
}

// The docs show the pictures that the tests take, and they are small.
func TestPicturesOfTheDocs(t *testing.T) {
	have, err := filepath.Glob("../../../docs/*.webp")
	expect.NoError(t, err)
	var names []string
	total := int64(0)
	for _, name := range have {
		info, err := os.Stat(name)
		expect.NoError(t, err)
		total += info.Size()
		names = append(names, filepath.Base(name))
	}
	var want []string
	for _, name := range ofTheDocs {
		want = append(want, name+".webp")
	}
	slices.Sort(want)
	if !slices.Equal(names, want) || total > 100_000 {
		t.Errorf("have %v with %d bytes, want %v with 100,000 at most", names, total, want)
	}
}

// beyond lists elements that extend past the right edge.
const beyond = `[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > %d + .5).map(e => (e.closest('[id]')?.id ?? '') + ' ' + e.tagName + '.' + e.className).slice(0, 5)`

// clipped lists texts that are wider than their container.
const clipped = `[...document.querySelectorAll('main *:not(.hidden):not(textarea)')].filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1 && !e.matches('input, select') && e.innerText).map(e => e.tagName + ' ' + e.innerText.slice(0, 40))`

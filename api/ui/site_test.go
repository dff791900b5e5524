package ui

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

func serve(s *Site, method, name string, header map[string]string) (*http.Response, bool) {
	r := httptest.NewRequest(method, "/ui/"+name, nil)
	for k, v := range header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	found := s.Serve(w, r, name)
	return w.Result(), found
}

func TestFilesAreServed(t *testing.T) {
	s := Open()
	seen := 0
	err := fs.WalkDir(files, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		seen++
		name = strings.TrimPrefix(name, "static/")
		resp, found := serve(s, "GET", name, nil)
		if !found || resp.StatusCode != 200 || resp.ContentLength == 0 {
			t.Errorf("%s: have %v %d", name, found, resp.StatusCode)
		}
		if have := resp.Header.Get("Content-Type"); have == "" || have != types[path.Ext(name)] {
			t.Errorf("%s: have the type %q", name, have)
		}
		tag := resp.Header.Get("ETag")
		again, _ := serve(s, "GET", name, map[string]string{"If-None-Match": tag})
		if tag == "" || again.StatusCode != http.StatusNotModified ||
			again.Header.Get("Content-Security-Policy") != policy {
			t.Errorf("%s: ETag %s, have %d", name, tag, again.StatusCode)
		}
		if other, _ := serve(s, "GET", name, map[string]string{"If-None-Match": `"other"`}); other.StatusCode != 200 {
			t.Errorf("%s: another version: have %d", name, other.StatusCode)
		}
		return nil
	})
	if err != nil || seen < 10 {
		t.Fatalf("%d files, %v", seen, err)
	}
	total := 0
	for _, f := range s.files {
		if f != s.files[""] {
			total += len(f.body)
		}
	}
	total += len(s.files[""].body)
	if total > 200_000 {
		t.Errorf("the page has %d bytes, want 200,000 at most", total)
	}
	for _, name := range []string{"nothing", "static/app.js", "../site.go", "/app.js", "app.js/", "APP.JS"} {
		if _, found := serve(s, "GET", name, nil); found {
			t.Errorf("%q is served", name)
		}
	}
	page, _ := serve(s, "GET", "", nil)
	if page.Header.Get("Content-Type") != types[".html"] {
		t.Errorf("the page: have %v", page.Header)
	}
}

func TestHeaders(t *testing.T) {
	resp, _ := serve(Open(), "GET", "", nil)
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
		"Referrer-Policy": "no-referrer", "Cache-Control": "no-cache",
	} {
		expect.Equal(t, resp.Header.Get(name), want, "%s", name)
	}
	have := resp.Header.Get("Content-Security-Policy")
	want := "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-ancestors 'none'; " +
		"base-uri 'none'; form-action 'none'"
	expect.Equal(t, have, want, "the policy")
}

// Nothing is loaded from other sites or inline, every referenced file exists,
// and no text can become markup.
func TestSourcesKeepThePolicy(t *testing.T) {
	forbidden := regexp.MustCompile(`https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage|document\.cookie|console\.|\bstyle="|\bon[a-z]+="|<style|javascript:`)
	named := regexp.MustCompile(`(?:from|import\() ?'\./([^']+)'|(?:src|href)="([a-z][^":/]*)"`)
	standing := regexp.MustCompile(`http://www\.w3\.org/2000/svg`) // a name that is never fetched
	s := Open()
	for name, f := range s.files {
		text := standing.ReplaceAllString(string(f.body), "")
		expect.Equal(t, forbidden.FindString(text), "", "%s", name)
		if strings.Contains(text, "sessionStorage") && name != "token.js" {
			t.Errorf("%s uses sessionStorage, which is for the token only", name)
		}
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if target := m[1] + m[2]; s.files[target] == nil {
				t.Errorf("%s names %s, which does not exist", name, target)
			}
		}
		if n := strings.Count(text, "\n"); n > 300 {
			t.Errorf("%s has %d lines", name, n)
		}
	}
}

package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var files embed.FS

// types maps file name extensions to content types. The operating system's
// table may be missing or wrong.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// policy is the content security policy. The page may load only from its own
// origin, and no page may frame it. The last two directives are for what
// default-src does not cover.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-ancestors 'none'; " +
	"base-uri 'none'; form-action 'none'"

// file is an embedded file with its headers.
type file struct {
	body        []byte
	contentType string
	tag         string // the ETag, a hash of body
}

// Site serves the dashboard. It is immutable.
type Site struct {
	files map[string]*file // by path relative to the site's
}

// Open loads the embedded files.
func Open() *Site {
	s := &Site{files: map[string]*file{}}

	// Embedded files can always be read. A test checks that none is missing.
	_ = fs.WalkDir(files, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}

		body, err := files.ReadFile(name)
		if err != nil {
			return err
		}

		sum := sha256.Sum256(body)
		s.files[strings.TrimPrefix(name, "static/")] = &file{
			body: body, contentType: types[path.Ext(name)], tag: `"` + hex.EncodeToString(sum[:12]) + `"`,
		}
		return nil
	})
	s.files[""] = s.files["index.html"]
	return s
}

// Serve answers a GET or HEAD for the file with a path relative to the site's,
// "" for the page itself. It reports false if there is no such file. Browsers
// may cache files, but must revalidate them every time.
func (s *Site) Serve(w http.ResponseWriter, r *http.Request, name string) bool {
	f := s.files[name]
	if f == nil {
		return false
	}

	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Type", f.contentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", f.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))

	return true
}

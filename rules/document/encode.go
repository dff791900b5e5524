package document

import (
	"crypto/sha256"
	"fmt"

	"github.com/rlnode/rlnode/internal/yaml"
)

// YAML renders the document. If it was parsed from YAML, the result is the
// original text with its comments. Otherwise the keys are in the usual order.
// If the YAML of a document that was parsed from JSON exceeds MaxDocument, the
// result is that JSON.
func (d *Document) YAML() []byte {
	if d.source != "" && !d.asJSON {
		return []byte(d.source)
	}
	text := d.node().AppendYAML(nil)
	if len(text) > MaxDocument && d.source != "" {
		return []byte(d.source) // JSON is YAML too, and it fits
	}
	return text
}

// JSON renders the document as JSON, with the keys in the usual order.
func (d *Document) JSON() []byte { return d.node().AppendJSON(nil) }

// Hash returns the SHA-256 of the document as JSON with the keys in the usual
// order, whatever text it was parsed from. Nodes of different builds compare
// these hashes, so a change that gives any document another hash needs a higher
// feature level.
func (d *Document) Hash() [sha256.Size]byte { return sha256.Sum256(d.JSON()) }

// fittingText renders the document as YAML, or as JSON if only that fits.
func (d *Document) fittingText() []byte {
	text := d.YAML()
	if len(text) > MaxDocument {
		text = d.JSON()
	}
	return text
}

// Text returns the text that the document was parsed from, or an equivalent
// one. The error is of type [Errors] and means that no such text fits in
// MaxDocument bytes.
func (d *Document) Text() (string, error) {
	if d.source != "" {
		return d.source, nil
	}
	text := d.fittingText()
	if len(text) > MaxDocument {
		return "",
			Errors{{Message: fmt.Sprintf("the document takes %d bytes as text; at most %d are allowed", len(text), MaxDocument)}}
	}
	return string(text), nil
}

func (d *Document) node() *yaml.Node { return documentFields.node(d) }

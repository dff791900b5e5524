package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// StrictJSON decodes JSON, and rejects unknown fields and trailing data:
// another build might use a field that this one ignored, and what both keep
// would diverge.
func StrictJSON(b []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}

	_, err := d.Token()
	if !errors.Is(err, io.EOF) {
		return errors.New("data after the end of the JSON")
	}
	return nil
}

package api

import (
	"encoding/json"
	"errors"

	"github.com/danielgtaylor/huma/v2"
)

// strictJSON reads and writes JSON as huma does, but takes no null: what has no value is left out, and a null that
// meant something else must not be taken for that.
var strictJSON = huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: func(data []byte, into any) error {
	if err := json.Unmarshal(data, into); err != nil {
		return err
	}
	if parsed, ok := into.(*any); ok && hasNull(*parsed) { // which huma asks for first, to check it
		return errors.New("null is not taken: leave out what has no value")
	}
	return nil
}}

func hasNull(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case []any:
		for _, one := range value {
			if hasNull(one) {
				return true
			}
		}
	case map[string]any:
		for _, one := range value {
			if hasNull(one) {
				return true
			}
		}
	}
	return false
}

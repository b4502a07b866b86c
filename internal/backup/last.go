package backup

import (
	"encoding/json"
	"fmt"
	"time"
)

// LastSetting is the lab's setting that holds the Last backup.
const LastSetting = "backup.last"

// Last is the last backup that was made of a lab.
type Last struct {
	Made    time.Time `json:"made"`
	Bytes   int64     `json:"bytes"` // of the file
	Homes   bool      `json:"homes"`
	History bool      `json:"history"`
}

// ParseLast reads the setting; nil where there was no backup yet.
func ParseLast(setting string) (*Last, error) {
	if setting == "" {
		return nil, nil
	}
	var l Last
	if err := json.Unmarshal([]byte(setting), &l); err != nil {
		return nil, fmt.Errorf("what the lab knows of its last backup: %w", err)
	}
	return &l, nil
}

// Setting is what ParseLast reads.
func (l Last) Setting() (string, error) {
	text, err := json.Marshal(l)
	return string(text), err
}

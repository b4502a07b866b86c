package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
)

func TestConfiguration(t *testing.T) {
	finds(t, machine(t, nil), "configuration", Options{}, OK)
	finds(t, machine(t, nil), "configuration", Options{ConfigError: errors.New("line 3: unknown key httpsport; did you mean httpsPort?")}, Fail, "line 3", "`gpulab init`")
	finds(t, machine(t, nil), "configuration", Options{ConfigError: fmt.Errorf("the configuration: %w", fs.ErrPermission)}, Unseen)
}

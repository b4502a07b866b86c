package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// shown is what systemctl of Debian 12 prints for the two units of a lab that
// is well.
const shown = `Result=success
NRestarts=0
Id=gpulab.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled

Result=success
Id=gpulab-pods.service
LoadState=loaded
ActiveState=active
UnitFileState=static
`

func TestUnits(t *testing.T) {
	finds(t, machine(t, nil), "units", Options{}, OK, "systemd does not run here")
	booted := map[string]string{"/run/systemd/system/x": ""}
	finds(t, machine(t, booted), "units", Options{}, OK, "no unit of gpulab yet")
	booted["/var/lib/gpulab/identity.json"] = "{}"
	finds(t, machine(t, booted), "units", Options{}, Fail, "Run `gpulab init`")

	booted["/usr/lib/systemd/system/gpulab.service"] = "[Unit]\n"
	for _, test := range []struct{ old, new, state, says string }{
		{"", "", OK, "active and enabled"},
		{"LoadState=loaded\nActiveState=active\nUnitFileState=enabled", "LoadState=masked\nActiveState=inactive\nUnitFileState=masked", Fail, "`systemctl unmask gpulab && gpulab init`"},
		{"Result=success\nNRestarts=0\nId=gpulab.service\nLoadState=loaded\nActiveState=active", "Result=exit-code\nNRestarts=3\nId=gpulab.service\nLoadState=loaded\nActiveState=failed", Fail, "(exit-code)"},
		{"UnitFileState=enabled", "UnitFileState=disabled", Warn, "`systemctl enable gpulab`"},
		{"NRestarts=0", "NRestarts=14", Warn, "again 14 times"},
		{"Id=gpulab-pods.service\nLoadState=loaded\nActiveState=active", "Id=gpulab-pods.service\nLoadState=loaded\nActiveState=inactive", Warn, "`systemctl start gpulab-pods`"},
	} {
		h := machine(t, booted)
		h.output = func(_ context.Context, name string, _ ...string) (string, error) {
			return strings.Replace(shown, test.old, test.new, 1), nil
		}
		finds(t, h, "units", Options{}, test.state, test.says)
	}
	h := machine(t, booted)
	h.output = func(context.Context, string, ...string) (string, error) {
		return "", errors.New("connection timed out")
	}
	finds(t, h, "units", Options{}, Unseen, "connection timed out")
}

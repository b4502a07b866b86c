package doctor

import (
	"errors"
	"io/fs"
)

// probeConfiguration says what is wrong with the configuration.
func probeConfiguration(_ host, opts Options) []Finding {
	switch {
	case opts.Joined != nil && opts.ConfigError == nil:
		return []Finding{{Probe: "configuration", State: OK, Seen: "What the head wants of this machine can be read."}}
	case opts.Joined != nil && !errors.Is(opts.ConfigError, fs.ErrPermission):
		return []Finding{{
			Probe: "configuration", State: Fail,
			Seen:  "What the head wants of this machine cannot be read: " + opts.ConfigError.Error() + ".",
			Means: "A gpulab that runs goes on, and does not start again.",
			Mend:  joinAnew,
		}}
	case opts.ConfigError == nil:
		return []Finding{{Probe: "configuration", State: OK, Seen: "The configuration can be read."}}
	case errors.Is(opts.ConfigError, fs.ErrPermission):
		return []Finding{{Probe: "configuration", State: Unseen, Seen: "Only root can read the configuration; everything " +
			"else here was looked at with the defaults."}}
	}
	return []Finding{{
		Probe: "configuration", State: Fail,
		Seen: "The configuration cannot be used: " + opts.ConfigError.Error() + ".",
		Means: "A gpulab that runs goes on with the old one, and does not start again. Everything else here was looked at " +
			"with the defaults.",
		Mend: "Correct the line, for example with `nano /etc/gpulab/config.yaml`, then run `gpulab init`.",
	}}
}

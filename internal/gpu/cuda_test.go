package gpu

import (
	"strings"
	"testing"
)

// nvidias is the beginning of what NVIDIA's own images of CUDA 12.4 say.
const nvidias = "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=470,driver<471 brand=geforce,driver>=535,driver<536"

func machine(driver, cuda string, arches ...string) Snapshot {
	s := Snapshot{DriverVersion: driver, CUDAVersion: cuda}
	for _, a := range arches {
		s.GPUs = append(s.GPUs, GPU{Device: Device{ComputeCapability: a}})
	}
	return s
}

func TestObstacle(t *testing.T) {
	t.Parallel()
	const update = " Ask an administrator to update the NVIDIA driver, or choose another notebook."
	for _, tc := range []struct {
		name string
		env  []string
		on   Snapshot
		want string // "" for none
	}{
		{"nothing asked for", []string{"PATH=/bin"}, machine("470.1", "11.4", "8.6"), ""},
		{"new enough", []string{"NVIDIA_REQUIRE_CUDA=cuda>=12.4"}, machine("550.54", "12.4", "8.6"), ""},
		{"ten is more than nine", []string{"NVIDIA_REQUIRE_CUDA=cuda>=12.9"}, machine("599.1", "12.10", "8.6"), ""},
		{"too old", []string{"NVIDIA_REQUIRE_CUDA=cuda>=13.0"}, machine("550.54", "12.4", "8.6"),
			"The image X needs CUDA 13.0 or newer; the driver of this machine (550.54) offers 12.4." + update},
		{"a major version alone", []string{"NVIDIA_REQUIRE_CUDA=cuda>=13"}, machine("550.54", "12.4", "8.6"),
			"The image X needs CUDA 13.0 or newer; the driver of this machine (550.54) offers 12.4." + update},
		{"NVIDIA's own, new enough", []string{nvidias}, machine("550.54", "12.4", "8.6"), ""},
		{"NVIDIA's own, an older driver of a brand that is not known", []string{nvidias}, machine("535.104.05", "12.2", "8.6"), ""},
		{"NVIDIA's own, too old", []string{nvidias}, machine("525.60", "12.0", "8.6"),
			"The image X needs CUDA 12.4 or newer; the driver of this machine (525.60) offers 12.0." + update},
		{"and", []string{"NVIDIA_REQUIRE_CUDA=cuda>=12.0,driver>=560"}, machine("550.54", "12.4", "8.6"),
			"The image X needs CUDA 12.0 or newer with driver 560 or newer; this machine has driver 550.54 with CUDA 12.4." + update},
		{"or", []string{"NVIDIA_REQUIRE_CUDA=cuda>=13.0 driver=550.54"}, machine("550.54", "12.4", "8.6"), ""},
		{"the GPU is too old", []string{"NVIDIA_REQUIRE_ARCH=arch>=7.0"}, machine("550.54", "12.4", "6.1"),
			"The image X needs compute capability 7.0 or newer; this machine has driver 550.54 with CUDA 12.4 and a GPU of compute capability 6.1. Choose another notebook."},
		{"one of the GPUs will do", []string{"NVIDIA_REQUIRE_ARCH=arch>=7.0"}, machine("550.54", "12.4", "6.1", "8.6"), ""},
		{"one of two requirements fails", []string{"NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_REQUIRE_DRIVER=driver>=560"}, machine("550.54", "12.4", "8.6"),
			"The image X needs CUDA 12.0 or newer; and driver 560 or newer; this machine has driver 550.54 with CUDA 12.4." + update},
		{"only older ones", []string{"NVIDIA_REQUIRE_CUDA=cuda<12"}, machine("550.54", "12.4", "8.6"),
			"The image X needs CUDA older than 12.0; the driver of this machine (550.54) offers 12.4. Choose another notebook."},
		{"any but this", []string{"NVIDIA_REQUIRE_CUDA=cuda!=12.4"}, machine("550.54", "12.4", "8.6"),
			"The image X needs CUDA other than 12.4; the driver of this machine (550.54) offers 12.4." + update},
		{"the same in other words", []string{"NVIDIA_REQUIRE_CUDA=cuda=12.4.0"}, machine("550.54", "12.4", "8.6"), ""},
		{"bounds", []string{"NVIDIA_REQUIRE_CUDA=cuda>12.3,cuda<=12.4"}, machine("550.54", "12.4", "8.6"), ""},
		{"a brand", []string{"NVIDIA_REQUIRE_CUDA=brand=tesla"}, machine("550.54", "12.4", "8.6"), ""},
		{"switched off", []string{"NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=true"}, machine("550.54", "12.4", "8.6"), ""},
		{"not switched off", []string{"NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=0"}, machine("550.54", "12.4", "8.6"),
			"The image X needs CUDA 99.0 or newer; the driver of this machine (550.54) offers 12.4." + update},
		{"other hardware's", []string{"NVIDIA_REQUIRE_JETPACK=csv-mounts=all"}, machine("550.54", "12.4", "8.6"), ""},
		{"made with a newer one of the same major version", []string{"CUDA_VERSION=12.8.1"}, machine("535.1", "12.2", "8.6"), ""},
		{"made with an older major version", []string{"CUDA_VERSION=11.8.0"}, machine("550.54", "12.4", "8.6"), ""},
		{"made with a newer major version", []string{"CUDA_VERSION=13.0.1"}, machine("550.54", "12.4", "8.6"),
			"The image X needs CUDA 13.0 or newer; the driver of this machine (550.54) offers 12.4." + update},
		{"before minor versions were compatible", []string{"CUDA_VERSION=10.2.89"}, machine("418.1", "10.1", "7.5"),
			"The image X needs CUDA 10.2 or newer; the driver of this machine (418.1) offers 10.1." + update},
		{"the requirement counts, not what it was made with", []string{"CUDA_VERSION=13.0.1", "NVIDIA_REQUIRE_CUDA=cuda>=9.0"}, machine("550.54", "12.4", "8.6"), ""},
		{"a driver that does not tell", []string{"NVIDIA_REQUIRE_CUDA=cuda>=99"}, machine("", "", ""), ""},
		{"no reading yet", []string{"NVIDIA_REQUIRE_CUDA=cuda>=99"}, Snapshot{}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, err := RequirementOf(tc.env)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Obstacle("X", tc.on); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestRequirementInWords(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{
		"PATH=/bin":               "",
		"NVIDIA_REQUIRE_CUDA=":    "",
		"NVIDIA_REQUIRE_CUDA= , ": "",
		nvidias:                   "CUDA 12.4 or newer",
		"CUDA_VERSION=12.8.1":     "CUDA 12.0 or newer",
		"NVIDIA_REQUIRE_CUDA=brand=tesla arch>=7": "a GPU of the brand tesla, or compute capability 7 or newer",
	} {
		r, err := RequirementOf([]string{env})
		if err != nil || r.String() != want {
			t.Errorf("%s: %q, %v; want %q", env, r, err, want)
		}
	}
}

func TestRequirementThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for env, says := range map[string]string{
		"NVIDIA_REQUIRE_CUDA=cuda":                                   `"cuda" compares nothing`,
		"NVIDIA_REQUIRE_CUDA=cuda>=":                                 "a version is written as",
		"NVIDIA_REQUIRE_CUDA=cuda>=twelve":                           "a version is written as",
		"NVIDIA_REQUIRE_CUDA=cuda>=-1":                               "a version is written as",
		"NVIDIA_REQUIRE_CUDA=cuda!12":                                "in no known way",
		"NVIDIA_REQUIRE_CUDA=colour=red":                             "does not know",
		"NVIDIA_REQUIRE_CUDA=brand>=tesla":                           "names no brand",
		"NVIDIA_REQUIRE_CUDA=" + strings.Repeat("cuda>=12 ", 10_000): "longer than",
		"CUDA_VERSION=latest":                                        "CUDA_VERSION cannot be read",
	} {
		if r, err := RequirementOf([]string{env}); err == nil || !strings.Contains(err.Error(), says) || r.String() != "" {
			t.Errorf("%.60s: %q, %v; want an error with %q", env, r, err, says)
		}
	}
}

// Whatever an image says, it is read to the end, and said again in other words.
func FuzzRequirement(f *testing.F) {
	for _, seed := range []string{nvidias[len("NVIDIA_REQUIRE_CUDA="):], "cuda>=12.4", "cuda>=", "a=b,c", "driver!=1.2.3.4 ,,", "arch<7", "brand=\xff"} {
		f.Add(seed, "12.4.1")
	}
	f.Fuzz(func(t *testing.T, require, made string) {
		for _, env := range [][]string{{"NVIDIA_REQUIRE_CUDA=" + require}, {"CUDA_VERSION=" + made}, {"NVIDIA_REQUIRE_CUDA=" + require, "CUDA_VERSION=" + made}} {
			r, err := RequirementOf(env)
			if err != nil {
				if r.String() != "" {
					t.Fatalf("%q: both a requirement and %v", env, err)
				}
				continue
			}
			for _, on := range []Snapshot{{}, machine("550.54", "12.4", "8.6"), machine("1", "1.0", "1.0")} {
				said := r.Obstacle("X", on)
				if (said != "") != (r.judgeMachine(on, on.DriverVersion, on.CUDAVersion) == no) {
					t.Fatalf("%q on %+v: %q", env, on, said)
				}
				if said != "" && on.DriverVersion == "" {
					t.Fatalf("%q is refused on a machine of which nothing is known: %q", env, said)
				}
			}
		}
	})
}

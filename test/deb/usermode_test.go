//go:build deb && vm

package deb

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

//go:embed uml.config
var userModeConfig string

// Debian 14's sources: those of Debian 12 know one processor only. A program's
// threads take turns on a mutex there; one that waits would keep a processor busy,
// were it not to sleep. The kubelet wants to know how fast processors are.
const userModeBuild = `
mmdebstrap --mode=root --variant=extract '--aptopt=Acquire::Check-Valid-Until "false"' --include=linux-source forky root
tar -xJf root/usr/src/linux-source-*.tar.xz
cd linux-source-*
sed -i 's/seq_printf(m, "bogomips/seq_puts(m, "cpu MHz\\t\\t: 2000.000\\n");\n\t&/' arch/um/kernel/um_arch.c
sed -i '/config \(MUTEX\|RWSEM\)_SPIN_ON_OWNER/,/depends/s/def_bool y/def_bool n/' kernel/Kconfig.locks
cat arch/um/configs/x86_64_defconfig ../uml.config >.config
make -s ARCH=um olddefconfig
grep '=y$' ../uml.config | while read -r wanted; do grep -qx "$wanted" .config || { echo "this Linux has no $wanted"; exit 1; }; done
make -s ARCH=um -j"$(nproc)" linux
strip -o ../linux linux
`

// userModeKernel is a Linux that runs as a program of this machine. It is built
// once and kept in the user's cache folder, under a name of what it is made from.
func userModeKernel(t *testing.T) string {
	t.Helper()
	return kept(t, "uml", userModeBuild+userModeConfig, "", func(fresh string) {
		work := t.TempDir()
		if err := os.WriteFile(filepath.Join(work, "uml.config"), []byte(userModeConfig), 0o644); err != nil {
			t.Fatal(err)
		}
		build := exec.Command("sh", "-ec", userModeBuild)
		build.Dir = work
		must(t, build)
		must(t, exec.Command("cp", filepath.Join(work, "linux"), fresh))
	})
}

// manyMappings lets a program of this machine have as many mappings as a large one
// inside needs: each of its pages may be one of its own. The default of 65530 is
// 256 MiB; at it the program inside stands still.
func manyMappings(t *testing.T) {
	t.Helper()
	const file = "/proc/sys/vm/max_map_count"
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("1048576"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, before, 0o644); err != nil {
			t.Error(err)
		}
	})
}

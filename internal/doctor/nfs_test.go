package doctor

import "testing"

func TestNFS(t *testing.T) {
	h := machine(t, nil)
	finds(t, h, "nfs", Options{}, OK, "not exported")
	finds(t, h, "nfs", Options{ServeNFS: true}, Fail, "This machine has no NFS server.", "`apt-get install nfs-kernel-server`")
	finds(t, h, "nfs", Options{MountNFS: true}, Fail, "This machine cannot mount NFS.", "`apt-get install nfs-common`")
	programs := map[string]string{"/usr/sbin/exportfs": "x", "/usr/sbin/mount.nfs4": "x"}
	h = machine(t, programs)
	for path := range programs {
		executable(t, h.path(path))
	}
	finds(t, h, "nfs", Options{ServeNFS: true}, Fail, "cannot serve NFS", "virtual machine in place of a container")
	finds(t, h, "nfs", Options{MountNFS: true}, Fail, "cannot mount NFS", "reboot")
	write(t, h.path("/proc/filesystems"), "nodev\tnfs4\nnodev\tnfsd\n")
	finds(t, h, "nfs", Options{ServeNFS: true}, OK, "can serve")
	finds(t, h, "nfs", Options{MountNFS: true}, OK, "can mount")

	m, opts := member(t)
	opts.Joined.Shared, opts.Joined.Exported = "", []string{"/var/lib/gpulab/homes"}
	finds(t, m, "sharedstorage", opts, Fail, "is not mounted at /var/lib/gpulab/homes", "`exportfs -v`")
	opts.Joined.Exported = []string{"/srv/lab"}
	finds(t, m, "sharedstorage", opts, OK, "are mounted here")
}

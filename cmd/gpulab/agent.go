package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/gpulab/gpulab/assets"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/deviceplugin"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/fleet"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/hoststat"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/podresources"
	"github.com/gpulab/gpulab/internal/version"
	"github.com/gpulab/gpulab/packaging/simdriver"
)

// Stages of a joined machine's start, beside those that a head has too.
const (
	stageStorage  = "storage"
	stageReadings = "readings"
	stagePods     = "pods"
)

// errLeft ends an agent whose machine was removed from the pool.
var errLeft = errors.New("this machine was removed from the pool")

// agent is gpulab on a machine that has joined: it runs Kubernetes there as a
// node of the head's, watches the GPUs, and tells the head what it sees. All
// else, people and their notebooks, is the head's.
type agent struct {
	app  *app
	file *joinedFile
	cfg  config.Config
	boot *boot

	pass         passport
	certificate  atomic.Pointer[tls.Certificate]
	client       *nodeapi.Client
	names        nameWatch
	fleet        *fleet.Fleet      // of this machine alone
	images       embedk8s.ImageSet // of the package gpulab-images, where that is here; the head hands over what is not
	keeper       atomic.Pointer[imageKeeper]
	environments *environmentKeeper
	cluster      atomic.Pointer[embedk8s.Cluster]
	plugins      *deviceplugin.Proxy
	lending      *lending
	moved        chan struct{} // has room for one: this machine has another address
	busy         *hostWatch
	left         chan struct{} // closed when the head says that we are removed
	leave        sync.Once
	once         struct{ driver, monitor, kubernetes, images sync.Once }

	mu    sync.Mutex
	since time.Time // when the connection to the head was made; zero without one
	why   string    // there is none
	// refused is why the head does not hear this machine, nil where it does or
	// cannot be asked; theirs is its version, "" before it has said so.
	refused error
	theirs  string
	// cannotEncrypt says that the head wants what this kernel cannot.
	cannotEncrypt bool
	own           netip.Addr // this machine's towards the head
}

func newAgent(ctx context.Context, a *app, file *joinedFile) (*agent, error) {
	pass, err := loadPassport(file.config())
	if err != nil {
		return nil, err
	}
	g := &agent{
		app: a, file: file, pass: pass, fleet: fleet.New(), left: make(chan struct{}), moved: make(chan struct{}, 1),
	}
	g.certificate.Store(pass.certificate)
	g.client = nodeapi.Member(file.places(), pass.authority, func() (*tls.Certificate, error) {
		return g.certificate.Load(), nil
	})
	g.refresh(ctx)
	g.cfg = file.config()
	cfg := g.cfg
	inputs, err := file.inputs()
	if err != nil {
		return nil, err
	}
	stages := []string{stageRuntime, stageKubernetes, stageImages, stageNotebook, stageNode, stageReadings, stagePods}
	if cfg.GPUs == config.GPUsSimulated {
		stages = append([]string{stageRuntime, stageDriver}, stages[1:]...)
	}
	if cfg.Storage.Everywhere() {
		stages = append([]string{stageStorage}, stages...)
	}
	g.boot = newBoot(fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano()), inputs, stages...)
	g.plugins = deviceplugin.New(deviceplugin.Config{Log: slog.Default()})
	g.lending = newObedientLending(g.plugins, g.fleet, cfg.GPUSharing)
	host, err := hoststat.New()
	if err != nil {
		return nil, err
	}
	g.busy = &hostWatch{host: host, dir: cfg.DataDir}
	g.environments = g.newEnvironmentKeeper()
	if dir, err := cfg.FindImages(); err == nil {
		if g.images, err = embedk8s.OpenImages(dir); err != nil {
			slog.Warn("the images of the package gpulab-images cannot be used; the head hands over all", "err", err)
		}
	}
	return g, nil
}

// run works until ctx ends; pods keep running after it. errLeft says that the
// machine is to be cleaned up.
func (g *agent) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return ctl.ServeMachine(ctx, g.app.socket, g) })
	group.Go(func() error { return g.report(ctx) })
	group.Go(func() error { return g.busy.run(ctx) })
	group.Go(func() error { return g.names.run(ctx, lookAtNames(g.app)) })
	group.Go(func() error { return (&embedk8s.PodBounds{}).Run(ctx) })
	group.Go(func() error { return embedk8s.LXCFS(g.cfg.DataDir, "").Run(ctx) })
	group.Go(func() error { return g.renew(ctx) })
	group.Go(func() error { return g.environments.watch(ctx) })
	group.Go(func() error { return g.keepPlace(ctx) })
	group.Go(func() error { return g.start(ctx, group) })
	group.Go(func() error { return g.watchdog(ctx) })
	group.Go(func() error {
		select {
		case <-g.left:
			return errLeft
		case <-ctx.Done():
			return nil
		}
	})
	notify(sd.SdNotifyReady)
	context.AfterFunc(ctx, func() { notify(sd.SdNotifyStopping) })
	err := group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// start goes the way into the pool as often as it takes.
func (g *agent) start(ctx context.Context, group *errgroup.Group) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := g.bootstrap(ctx, group)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			g.boot.finish()
			debug.FreeOSMemory() // a start takes more than what follows
			return nil
		}
		g.boot.failed(err, time.Now().Add(pause))
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
		g.boot.again()
	}
}

func (g *agent) bootstrap(ctx context.Context, group *errgroup.Group) error {
	if g.cfg.Storage.Everywhere() {
		err := g.boot.do(stageStorage, func(st *stage) error {
			if g.cfg.Storage.Shared != "" {
				st.say("%s", g.cfg.Storage.Shared)
				return g.openShared()
			}
			st.say("homes of %s over NFS", g.file.Settings.Head)
			return g.openExported(ctx)
		})
		if err != nil {
			return err
		}
	}
	var runtime embedk8s.Runtime
	err := g.boot.do(stageRuntime, func(st *stage) (err error) {
		archive, ok := assets.Bundle()
		if !ok {
			return embedk8s.ErrNoBundle
		}
		var did bool
		runtime, did, err = embedk8s.Stage(ctx, archive, g.cfg.DataDir, func(done, total int64) {
			st.say("unpacking, %d %%", 100*done/max(total, 1))
		})
		assets.ReleaseBundle()
		if did {
			st.changed()
		}
		st.say("%s", runtime.Hash)
		return err
	})
	if err != nil {
		return err
	}
	switch g.cfg.GPUs {
	case config.GPUsSimulated:
		if err := g.startDriver(ctx, group, runtime); err != nil {
			return err
		}
	case config.GPUsReal:
		prepareRealGPUs(ctx, g.cfg)
	}
	if err := g.startMonitor(ctx, group, runtime); err != nil {
		return err
	}
	if err := g.startKubernetes(ctx, group, runtime); err != nil {
		return err
	}
	serving := ctx
	err = all(ctx,
		func(ctx context.Context) error {
			if err := g.handOver(ctx, stageImages, func(img nodeapi.Image) bool {
				return img.Own && img.Name != notebookImage
			}); err != nil {
				return err
			}
			err := g.handOver(ctx, stageNotebook, func(img nodeapi.Image) bool { return img.Own && img.Name == notebookImage })
			if err == nil {
				// Those of the lab's admins come when the machine is in the pool.
				g.once.images.Do(func() {
					group.Go(func() error { return g.keeper.Load().run(serving) })
					group.Go(func() error { return g.environments.run(serving) })
				})
			}
			return err
		},
		func(ctx context.Context) error {
			if err := g.await(ctx, stageNode, false, func(p nodeapi.Progress) (bool, string) {
				return p.Node, p.Detail
			}); err != nil {
				return err
			}
			return g.await(ctx, stageReadings, false, func(p nodeapi.Progress) (bool, string) { return p.Reading, "" })
		},
	)
	if err != nil {
		return err
	}
	return g.await(ctx, stagePods, true, func(p nodeapi.Progress) (bool, string) { return p.Pods, p.Detail })
}

// refresh takes over what the head wants now; while it does not answer, what it
// wanted last stands. Nothing else runs yet.
func (g *agent) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := g.client.Settings(ctx)
	if err != nil {
		slog.Info("going on with the settings known last", "because", err)
		return
	}
	s.DataDir = g.file.Settings.DataDir // moves with a new join only
	g.file.Settings = s
	if err := g.file.save(); err != nil {
		slog.Warn("the lab's settings could not be kept", "err", err)
	}
}

func (g *agent) openShared() error {
	if err := lookAtShared(g.cfg.Storage.Shared, g.file.Settings.Mark); errors.Is(err, errUnmarked) {
		return missingStorage(g.cfg.Storage.Shared)
	} else if err != nil {
		return err
	}
	return mountShared(g.cfg.Storage.Shared, g.cfg.DataDir)
}

func (g *agent) simRoot() string { return filepath.Join(g.cfg.DataDir, "simdriver", "root") }

func (g *agent) startDriver(ctx context.Context, group *errgroup.Group, rt embedk8s.Runtime) error {
	return g.boot.do(stageDriver, func(st *stage) error {
		if err := simdriver.Install(ctx, filepath.Join(rt.Dir, "simdriver"), g.simRoot(), g.cfg.SimulatedGPUs); err != nil {
			return err
		}
		st.say("%d simulated GPUs; they compute nothing", g.cfg.SimulatedGPUs)
		g.once.driver.Do(func() { group.Go(func() error { return simdriver.Run(ctx, g.simRoot()) }) })
		return nil
	})
}

// unknownPods knows no pod: whose they are is the head's to say.
type unknownPods struct{}

func (unknownPods) ByUID(string) (gpu.PodRef, bool) { return gpu.PodRef{}, false }
func (unknownPods) ByName(string, string) (gpu.PodRef, time.Time, bool) {
	return gpu.PodRef{}, time.Time{}, false
}

// startMonitor watches the GPUs, and which pods have been given them.
func (g *agent) startMonitor(ctx context.Context, group *errgroup.Group, rt embedk8s.Runtime) (err error) {
	g.once.monitor.Do(func() {
		if g.cfg.GPUs == config.GPUsNone {
			group.Go(func() error {
				for now := time.Now(); ; now = time.Now() {
					g.fleet.Update(gpu.Snapshot{Node: g.file.Name, Time: now, GPUs: []gpu.GPU{}})
					if !sleep(ctx, time.Second) {
						return nil
					}
				}
			})
			return
		}
		var holders *podresources.Holders
		if holders, err = podresources.New(podresources.DefaultSocket, unknownPods{}); err != nil {
			return
		}
		library := ""
		if g.cfg.GPUs == config.GPUsSimulated {
			library = simdriver.Library(g.simRoot())
		}
		monitor := gpu.NewMonitor(gpu.MonitorConfig{
			Node: g.file.Name, ProbePath: filepath.Join(rt.Dir, "gpulab-probe"), Library: library,
			Holders: holders, Publish: g.lending.publish,
			LogFile: filepath.Join(g.cfg.DataDir, "log", "probe.log"), PIDFile: filepath.Join(g.cfg.DataDir, "probe.pid"),
		})
		group.Go(func() error { return g.plugins.Run(ctx) })
		group.Go(func() error { return holders.Run(ctx, time.Second) })
		group.Go(func() error { return monitor.Run(ctx) })
	})
	return err
}

func (g *agent) featuresDir() string { return filepath.Join(g.cfg.DataDir, "features") }
func (g *agent) tokenFile() string   { return filepath.Join(g.cfg.DataDir, "k3s-token") }

// startKubernetes makes this machine a node of the head's cluster, or takes over
// a k3s that runs. The first time the head gives it a credential.
func (g *agent) startKubernetes(ctx context.Context, group *errgroup.Group, rt embedk8s.Runtime) error {
	return g.boot.do(stageKubernetes, func(st *stage) error {
		if err := canEncrypt(g.encrypts()); err != nil {
			return err
		}
		cluster := g.cluster.Load()
		if cluster == nil {
			var err error
			if cluster, err = g.newCluster(ctx, rt); err != nil {
				return err
			}
			keeper, err := g.newKeeper(cluster)
			if err != nil {
				return err
			}
			g.keeper.Store(keeper)
			g.cluster.Store(cluster)
		}
		// The head may have said something else meanwhile.
		if err := cluster.Encrypt(g.encrypts()); err != nil {
			return err
		}
		if !cluster.Admitted() {
			token, err := g.client.Token(ctx)
			if err != nil {
				return err
			}
			if err := nodes.WriteSecret(g.tokenFile(), []byte(token+"\n")); err != nil {
				return err
			}
			st.changed()
		}
		if err := os.MkdirAll(g.featuresDir(), 0o755); err != nil {
			return err
		}
		if err := cluster.Claim(); err != nil {
			return err
		}
		if err := cluster.FollowData(); err != nil {
			slog.Warn("what notebooks write beside their homes stays on the disk of the system", "err", err)
		}
		if _, err := cluster.Prepare(); err != nil {
			return err
		}
		serving := ctx
		g.once.kubernetes.Do(func() {
			group.Go(func() error { return cluster.Run(serving) })
			group.Go(func() error { cluster.Watch(serving, nil); return nil })
		})
		limited, cancel := context.WithTimeout(ctx, kubernetesPatience)
		defer cancel()
		err := cluster.WaitContainerd(limited, func(why string) { st.say("%s", why) })
		if err == nil {
			st.say("containerd answers")
		}
		return err
	})
}

func (g *agent) newCluster(ctx context.Context, rt embedk8s.Runtime) (*embedk8s.Cluster, error) {
	s := g.file.Settings
	head, own, err := nodeapi.Reach(ctx, g.headAddresses())
	if err != nil {
		// Pods that run go on without the head, if k3s finds what it knew.
		var found netip.Addr
		if found, _, err = embedk8s.FindAddress(""); err != nil {
			return nil, err
		}
		head, own = g.headAddresses()[0], found
	}
	iface, err := embedk8s.InterfaceOf(own)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	g.own = own
	g.mu.Unlock()
	cluster, err1 := netip.ParsePrefix(s.ClusterCIDR)
	service, err2 := netip.ParsePrefix(s.ServiceCIDR)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("the lab's networks: %w", err)
	}
	id, err := embedk8s.JoinedIdentity(g.cfg.DataDir, g.file.Name, cluster, service)
	if err != nil {
		return nil, err
	}
	return embedk8s.New(embedk8s.Config{
		DataDir: g.cfg.DataDir, Runtime: rt, Identity: id, Address: own, Interface: iface,
		PauseImage: g.pauseImage(), PodMaxPIDs: g.cfg.K3s.PodMaxPIDs, Reserved: embedk8s.ThisMachine(),
		Proxy: s.Proxy, NoProxy: s.NoProxy, Encrypt: s.Encrypt,
		Join: &embedk8s.Join{Server: g.kubernetesAt(head), TokenFile: g.tokenFile()},
	}), nil
}

func (g *agent) importImages(ctx context.Context, name string, set embedk8s.ImageSet) error {
	return g.boot.do(name, func(st *stage) error {
		n, err := g.cluster.Load().ImportImages(ctx, set, func(underWay []string, done, total int) {
			st.say("importing %s (%d of %d done)", strings.Join(underWay, ", "), done, total)
		})
		if n > 0 {
			st.changed()
		}
		st.say("%d new, %d there before", n, len(set.Images)-n)
		return err
	})
}

// joinPatience is how long the head may take to see each step of a new machine.
const joinPatience = 2 * time.Minute

// await waits until the head has seen a step.
func (g *agent) await(ctx context.Context, name string, pods bool, done func(nodeapi.Progress) (bool, string)) error {
	return g.boot.do(name, func(st *stage) error {
		for end := time.Now().Add(joinPatience); ; {
			p, err := g.client.Progress(ctx, pods)
			refusal := g.refusal()
			switch {
			case refusal != nil:
				return refusal
			case err != nil:
				st.say("%s", err)
			case p.Failed != "":
				return errors.New(p.Failed)
			default:
				ok, detail := done(p)
				st.say("%s", detail)
				if ok {
					return nil
				}
			}
			if time.Now().After(end) {
				state, _ := g.boot.now()
				for _, s := range state.Stages {
					if s.Name == name && s.Detail != "" {
						return fmt.Errorf("after %s: %s; see `gpulab logs k3s` on this machine", joinPatience, s.Detail)
					}
				}
				return fmt.Errorf("the head has not seen it after %s; see `gpulab logs` on both machines", joinPatience)
			}
			if !sleep(ctx, 500*time.Millisecond) {
				return ctx.Err()
			}
		}
	})
}

// report keeps the stream to the head, as long as ctx lasts.
func (g *agent) report(ctx context.Context) error {
	mapsIDs := sync.OnceValue(func() bool { return canMapIDs(g.cfg.DataDir, filepath.Join(g.cfg.DataDir, "homes")) })
	reports := nodeapi.Newest(ctx, g.fleet.Subscribe(ctx), func(s gpu.Snapshot) nodeapi.Report {
		features := map[string]string{}
		for name, value := range readFeatures(g.featuresDir()) {
			features[name] = *value
		}
		report := nodeapi.Report{
			Snapshot: s, Features: features, Host: g.busy.latest.Load(), Environments: g.environments.told(),
			MemoryKills: embedk8s.MemoryKills(),
		}
		if keeper := g.keeper.Load(); keeper != nil {
			report.Images, report.MapsIDs = keeper.told(), new(mapsIDs())
		}
		g.mu.Lock()
		report.Encrypts, report.CannotEncrypt = g.file.Settings.Encrypt, g.cannotEncrypt
		g.mu.Unlock()
		return report
	})
	for pause := reconnectFirst; ; {
		began := time.Now()
		err := g.stream(ctx, reports)
		if ctx.Err() != nil {
			return nil
		}
		g.disconnected(err)
		if p := (*nodeapi.Problem)(nil); errors.As(err, &p) && p.Removed {
			g.leave.Do(func() { close(g.left) })
			return nil
		}
		// On a bad network connections end, but new ones are made.
		if time.Since(began) > reconnectLongest {
			pause = reconnectFirst
		}
		// Not all machines at once, when the head is back.
		if !sleep(ctx, time.Duration(float64(pause)*(0.5+rand.Float64()))) {
			return nil
		}
		pause = min(2*pause, reconnectLongest)
	}
}

// stream speaks with the head until the connection ends, or this machine is at
// another address.
func (g *agent) stream(ctx context.Context, reports <-chan nodeapi.Report) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-g.moved:
			cancel(errMoved)
		case <-ctx.Done():
		}
	}()
	err := g.client.Stream(ctx, version.Version, reports, g.obey)
	if errors.Is(context.Cause(ctx), errMoved) {
		g.client.Reconnect()
	}
	return err
}

// Pauses before the head is tried again.
const (
	reconnectFirst   = 500 * time.Millisecond
	reconnectLongest = 8 * time.Second
)

func (g *agent) disconnected(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why != err.Error() {
		slog.Warn("there is no connection to the head; trying again", "err", err)
	}
	g.since, g.why, g.refused = time.Time{}, err.Error(), nil
	if p := (*nodeapi.Problem)(nil); errors.As(err, &p) && p.Skewed {
		g.refused = p
	}
}

// refusal is why the head does not hear this machine.
func (g *agent) refusal() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused
}

// obey does what the head wants.
func (g *agent) obey(o nodeapi.Orders) {
	g.mu.Lock()
	if g.since.IsZero() {
		slog.Info("connected to the head")
		g.since, g.why, g.refused = time.Now(), "", nil
	}
	g.theirs = o.Version
	g.mu.Unlock()
	g.know(o.Places)
	g.lending.obey(o.LentAnyway)
	if keeper := g.keeper.Load(); keeper != nil {
		keeper.obey(o.Images)
	}
	g.environments.obey(o.Environments)
	if !o.Starting {
		g.encrypt(o.Encrypt)
	}
	if o.Leave {
		g.leave.Do(func() { close(g.left) })
	}
}

// renewEvery is how often the certificate is looked at.
const renewEvery = time.Hour

// renew replaces the certificate long before it ends.
func (g *agent) renew(ctx context.Context) error {
	for {
		if time.Until(g.certificate.Load().Leaf.NotAfter) < nodes.RenewBefore {
			if err := g.renewNow(ctx); err != nil && ctx.Err() == nil {
				slog.Warn("this machine's certificate could not be renewed; trying again", "until",
					g.certificate.Load().Leaf.NotAfter, "err", err)
			}
		}
		if !sleep(ctx, renewEvery) {
			return nil
		}
	}
}

func (g *agent) renewNow(ctx context.Context) error {
	request, err := nodes.NewRequest(g.pass.key)
	if err != nil {
		return err
	}
	text, err := g.client.Renew(ctx, request)
	if err != nil {
		return err
	}
	certificate, err := g.pass.with(text)
	if err != nil {
		return err
	}
	if err := nodes.WriteSecret(filepath.Join(tlsDir(g.cfg), nodeCertificateFile), text); err != nil {
		return err
	}
	g.certificate.Store(certificate)
	return nil
}

func (g *agent) watchdog(ctx context.Context) error {
	limit, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("systemd's watchdog: %w", err)
	}
	if limit > 0 {
		sayAlive(ctx, limit, func(ctx context.Context) error {
			if err := g.app.client().WatchBoot(ctx, func(ctl.Boot) error { return errEnough }); !errors.Is(err, errEnough) {
				return fmt.Errorf("the control socket: %w", err)
			}
			return nil
		}, func() { notify(sd.SdNotifyWatchdog) })
	}
	return nil
}

var _ ctl.Machine = (*agent)(nil)

// WatchBoot implements ctl.Machine.
func (g *agent) WatchBoot(ctx context.Context, fn func(ctl.Boot) error) error {
	return g.boot.watch(ctx, fn)
}

// Elsewhere implements ctl.Machine.
func (g *agent) Elsewhere() string {
	return fmt.Sprintf("this machine, %s, belongs to the pool of %s; run this on its head, %s (%s)", g.file.Name,
		g.file.Settings.Lab, g.file.Settings.Head, g.headAddresses()[0].Addr())
}

// runAgent runs a joined machine, and cleans it up when it was removed.
func runAgent(ctx context.Context, a *app, file *joinedFile) error {
	g, err := newAgent(ctx, a, file)
	if err != nil {
		return err
	}
	err = g.run(ctx)
	if !errors.Is(err, errLeft) {
		return err
	}
	slog.Info("this machine was removed from the pool: gpulab takes itself off it")
	return leaveFromWithin(ctx, a, file, func(s string) { slog.Info("leaving", "step", s) })
}

func newAgentCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "agent", Short: "Run a machine that has joined in the foreground (what the service does)",
		Long: `Run a machine that has joined a pool in the foreground, as gpulab.service does
there. Ending it leaves notebooks running; the next start takes them over.`,
		Example: "  sudo gpulab agent",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			file, err := loadJoined(a)
			if err != nil {
				return err
			}
			if file == nil {
				return fail(exitUsage, "this machine has not joined a pool; `gpulab join` does that, with a code from `gpulab "+
					"invite-node` on the head")
			}
			return newServe(a).RunE(c, args)
		},
	}
}

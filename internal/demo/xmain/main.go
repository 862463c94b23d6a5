package main
import ("context";"fmt";"os";"os/signal";"syscall";"log/slog";"encoding/json";"time";"strconv"
"github.com/baton-ipc/baton/broker";"github.com/baton-ipc/baton/broker/natsbridge";"github.com/baton-ipc/baton/internal/demo";"github.com/baton-ipc/baton/internal/termplot")
func main(){
 ctx,stop:=signal.NotifyContext(context.Background(),syscall.SIGINT,syscall.SIGTERM); defer stop()
 var err error
 switch os.Args[1]{
 case "serve":
  dir:=os.Args[7]; log:=slog.New(slog.NewTextHandler(os.Stderr,&slog.HandlerOptions{Level:slog.LevelInfo}))
  b,e:=broker.New(broker.Config{Dir:dir,Log:log,Memory:256<<20}); if e!=nil{panic(e)}
  br,e:=natsbridge.Start(ctx,natsbridge.Config{RuntimeDir:dir,Owner:b.ID(),Logger:log}); if e!=nil{panic(e)}
  c2,can:=context.WithCancel(context.Background()); done:=make(chan int)
  go func(){b.Mirror(c2,br);close(done)}()
  err=b.Serve(ctx); can(); <-done
  c3,cc:=context.WithTimeout(context.Background(),2*time.Second); br.Close(c3); cc()
 case demo.RoleCommand: err=demo.Role(ctx,os.Args[2],os.Args[3:])
 default:
  n,_:=strconv.Atoi(os.Args[2])
  st:=termplot.Detect(os.Stdout,os.Getenv); st.UTF8=true
  var r *demo.Result
  r,err=demo.Run(ctx,demo.Options{Batches:n,Progress:os.Stderr,Style:st})
  if err==nil{ j,_:=json.Marshal(r); fmt.Println(string(j)); s,_:=r.Draw(st); fmt.Println(s); err=r.Check()}
 }
 if err!=nil{fmt.Fprintln(os.Stderr,"ERR",err);os.Exit(1)}
}

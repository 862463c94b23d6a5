package bench
import ("testing";"context";"os";"fmt")
func TestMain(m *testing.M){ Child(); os.Exit(m.Run()) }
func TestX(t *testing.T){
 for i:=0;i<3;i++{
  for _,r:=range []string{"spin","futex"}{
  n:=20000; if r=="futex"{n=1000}
  o,err:=runPair(context.Background(),[2]int{0,1},job{Role:r,N:n})
  if err!=nil{t.Fatal(err)}
  fmt.Printf("%s oneway %+v rtt %+v\n",r,quantilesOf(o.gaps(seriesArrive,seriesDepart,n/10)),quantilesOf(o.gaps(seriesBack,seriesDepart,n/10)))
 }}
}

//! A program as a new project has it: arrays of ndarray and tensors of dlpk go into shared memory and back, and an
//! async task waits for them. `tools/rust test` runs it by `baton run`, which has the broker.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use baton::{Session, Start};
use dlpk::DLPackTensor;
use ndarray::{Array2, ArrayD, array};

const LONG: Duration = Duration::from_secs(90);

fn main() -> Result<(), Box<dyn Error>> {
    let session = Session::connect()?;
    arrays(&session)?;
    tensors_of_dlpk(&session)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(tasks(&session))?;
    session.close();
    println!("arrays, dlpk, tasks");
    Ok(())
}

fn arrays(session: &Session) -> Result<(), Box<dyn Error>> {
    let mine: Array2<f32> = array![[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]];
    let mut shared = session.from_array(&mine)?;
    shared.as_array_mut()?[[1, 2]] = 9.0;
    let back: ArrayD<f32> = shared.freeze().to_array()?;
    assert_eq!(back, array![[0.0, 1.0, 2.0], [3.0, 4.0, 9.0]].into_dyn());
    Ok(())
}

fn tensors_of_dlpk(session: &Session) -> Result<(), Box<dyn Error>> {
    let theirs = DLPackTensor::try_from(vec![1i64, 2, 3])?;
    let ours = session.from_dlpk(theirs)?;
    assert_eq!(ours.to_vec::<i64>()?, [1, 2, 3]);
    let filled = session.from_slice(&[4], &[1.5f64, 2.5, 3.5, 4.5])?;
    let given = DLPackTensor::try_from(filled)?;
    assert_eq!(given.shape(), [4]);
    assert_eq!(Vec::<f64>::try_from(given)?, [1.5, 2.5, 3.5, 4.5]);
    Ok(())
}

async fn tasks(session: &Session) -> Result<(), Box<dyn Error>> {
    let topic = session.topic("batches")?;
    let mut reader = topic.reader(Start::New)?;
    let waits = tokio::spawn(async move { reader.recv_async(LONG).await });
    tokio::task::yield_now().await; // to the other task, which waits now
    topic.send_async(session.from_array(&array![7u8, 8, 9])?.freeze(), LONG).await?;
    assert_eq!(waits.await??.tensor()?.to_array::<u8>()?, array![7, 8, 9].into_dyn());
    Ok(())
}

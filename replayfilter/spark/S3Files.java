import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Arrays;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.Invoker;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3ARetryPolicy;
import org.apache.hadoop.fs.s3a.impl.PutObjectOptions;
import org.apache.hadoop.util.functional.CallableRaisingIOE;
import org.apache.spark.sql.execution.streaming.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager;
import software.amazon.awssdk.awscore.AwsRequest;
import software.amazon.awssdk.awscore.AwsRequestOverrideConfiguration;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.services.s3.model.PutObjectRequest;
import software.amazon.awssdk.services.s3.model.S3Exception;

/** Files of a checkpoint on S3. An object appears at once, when its upload ends, so nothing is renamed. */
public class S3Files extends FileSystemBasedCheckpointFileManager {
    private final S3AFileSystem system;
    private final Invoker invoker;
    private volatile boolean refuses = false; // whether the store has shown that it replaces no entry

    public S3Files(Path path, Configuration conf) throws IOException {
        super(path, conf);
        system = (S3AFileSystem) path.getFileSystem(conf);
        invoker = new Invoker(new S3ARetryPolicy(conf), Invoker.LOG_EVENT);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
        try {
            if (!overwrite) {
                return new Entry(this, path, new ByteArrayOutputStream());
            }
            FSDataOutputStreamBuilder upload = system.createFile(path);
            upload.overwrite(true);
            upload.opt("fs.s3a.create.performance", "true"); // without requests that look for folders
            return new Upload((FSDataOutputStream) upload.build());
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    /** Write an object unless there is one of this name; S3 decides that, whoever else writes at the time. */
    private void add(Path path, byte[] content) throws IOException {
        if (!put(path, content)) {
            if (!has(path, content)) { // otherwise it is ours: the answer to an earlier try got lost
                throw new FileAlreadyExistsException(path + " exists already");
            }
        } else if (!refuses && put(path, content)) {
            throw new IOException("the store has replaced " + path + " in spite of If-None-Match: *; use a store "
                + "that knows conditional writes");
        }
        refuses = true;
    }

    /** False if S3 has refused it, because there is an object of this name. */
    private boolean put(final Path path, final byte[] content) throws IOException {
        AwsRequestOverrideConfiguration.Builder condition = AwsRequestOverrideConfiguration.builder();
        condition.putHeader("If-None-Match", "*");
        AwsRequest.Builder upload = system.getRequestFactory().newPutObjectRequestBuilder(
            system.pathToKey(path), PutObjectOptions.keepingDirs(), content.length, false);
        upload.overrideConfiguration((AwsRequestOverrideConfiguration) condition.build());
        final PutObjectRequest request = (PutObjectRequest) upload.build();
        return invoker.retry("add", path.toString(), true, new CallableRaisingIOE() {
            public Object apply() throws IOException {
                try {
                    system.getS3AInternals().getAmazonS3Client("add")
                        .putObject(request, RequestBody.fromBytes(content));
                    return Boolean.TRUE;
                } catch (S3Exception error) {
                    if (error.statusCode() != 412) {
                        throw error;
                    }
                    return Boolean.FALSE;
                }
            }
        }) == Boolean.TRUE;
    }

    private boolean has(Path path, byte[] content) throws IOException {
        FSDataInputStream stream = open(path);
        try {
            return Arrays.equals(stream.readAllBytes(), content);
        } finally {
            stream.close();
        }
    }

    /** An object that replaces another one. */
    public static class Upload extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final FSDataOutputStream upload;
        private boolean ended = false;

        public Upload(FSDataOutputStream upload) {
            super(upload);
            this.upload = upload;
        }

        public synchronized void close() throws IOException {
            if (!ended) {
                ended = true;
                upload.close();
            }
        }

        public synchronized void cancel() {
            if (!ended) {
                ended = true;
                upload.abort();
            }
        }
    }

    /** An object that must be new: an entry of one of Spark's logs. */
    public static class Entry extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final S3Files files;
        private final Path path;
        private final ByteArrayOutputStream content;
        private boolean ended = false;

        public Entry(S3Files files, Path path, ByteArrayOutputStream content) {
            super(content);
            this.files = files;
            this.path = path;
            this.content = content;
        }

        public synchronized void close() throws IOException {
            if (!ended) {
                ended = true;
                files.add(path, content.toByteArray());
            }
        }

        public synchronized void cancel() {
            ended = true;
        }
    }
}
